"""Who may call, and which arrival a call is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st
from support.small_cluster import job

from coordd.core.jobs.trigger import HMAC, Trigger
from coordd.core.triggers.arrivals import Arrival, args_of
from coordd.core.triggers.bodies import read_json, values_of
from coordd.core.triggers.calls import SIGNATURE, SKEW_MAX_S, Refusal, arrival_of, refusal, signature
from coordd.errors import RefusedError

WALL = 1_738_137_600.0
FILE = "/s"
BEARER = Trigger(kind="http", name="http", route="/orders", secret_file=FILE)
SIGNED = Trigger(kind="http", name="http", route="/orders", secret_file=FILE, auth=HMAC)


def status(trigger: Trigger, headers: dict[str, str], body: bytes = b"{}") -> int:
    said = refusal(trigger, "s3cret", headers, body, WALL)
    assert said is None or "s3cret" not in said.error
    return said.status if said is not None else 0


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"authorization": "Bearer s3cret"}, 0),
        ({"authorization": "Bearer s3cre"}, 401),
        ({"authorization": "bearer s3cret "}, 401),
        ({"authorization": "Bearer \xe9"}, 401),
        ({}, 401),
    ],
)
def test_a_token_is_compared_whole(headers: dict[str, str], expected: int) -> None:
    assert status(BEARER, headers) == expected


@given(
    at=st.integers(int(WALL - 1000), int(WALL + 1000)),
    change=st.sampled_from(["", "key", "body", "time", "secret", "route"]),
    body=st.binary(max_size=50),
)
def test_a_signature_counts_for_its_time_route_key_and_body_alone(at: int, change: str, body: bytes) -> None:
    said = signature(
        "other" if change == "secret" else "s3cret", at, "/other" if change == "route" else "/orders", "k", body
    )
    if change == "time":
        said = said.replace(f"t={at}", f"t={at + 1}")
    headers = {"idempotency-key": "other" if change == "key" else "k", SIGNATURE: said}
    fresh = abs(at - WALL) <= SKEW_MAX_S
    assert status(SIGNED, headers, body + b"x" if change == "body" else body) == (0 if fresh and not change else 401)


def test_a_signature_of_another_form_is_refused() -> None:
    for said in ("", "t=1", "t=x,s=" + "0" * 64, "sha256=" + "0" * 64):
        assert status(SIGNED, {"idempotency-key": "k", SIGNATURE: said}) == 401
    assert status(SIGNED, {"authorization": "Bearer s3cret", "idempotency-key": "k"}) == 401


def test_a_call_is_an_arrival_with_the_fields_of_its_body() -> None:
    body = json.dumps({"customer": "c1", "n": 3, "full": True, "nested": {"a": 1}}).encode()
    found = arrival_of(BEARER, {"idempotency-key": "k-1"}, body)
    assert found == Arrival("k-1", {"key": "k-1", "body.customer": "c1", "body.n": "3", "body.full": "true"})
    of = job(params={"what": ""})
    filled = Trigger(kind="http", name="h", args={"what": "{trigger.body.customer}/{trigger.key}"})
    assert args_of(of, filled, found) == '{"what": "c1/k-1"}'
    with pytest.raises(RefusedError, match="no text, number or boolean for"):
        args_of(of, Trigger(kind="http", name="h", args={"what": "{trigger.body.nested}"}), found)


@pytest.mark.parametrize(
    ("key", "body", "said"),
    [
        ("", b"", "expected the header Idempotency-Key"),
        ("a b", b"", "visible ASCII"),
        ("x" * 201, b"", "1 to 200"),
        ("k", b"[1]", "expected an object with fields, found list"),
        ("k", b"{", "expected JSON"),
        ("k", b"\xff", "expected JSON"),
        ("k", b'{"a":' * 20_000, "nested"),
        ("k", json.dumps(dict.fromkeys(map(str, range(300)))).encode(), "at most 200 fields"),
    ],
)
def test_a_call_that_says_something_else_starts_nothing(key: str, body: bytes, said: str) -> None:
    found = arrival_of(BEARER, {"idempotency-key": key}, body)
    assert isinstance(found, Refusal)
    assert found.status == 400
    assert said in found.error


@given(st.binary(max_size=200))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    try:
        values = values_of(read_json(body))
    except ValueError:
        return
    assert all(isinstance(value, str) for value in values.values())
