"""coordd.single: what it is called with. A daemon that says what the test wants; real runs are in tests/system."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.fake_daemon import FakeDaemon, refusal

from coordd.errors import RefusedError
from coordd.single import single


@pytest.mark.parametrize("name", ["id", "tick", "every"])
def test_an_empty_key_is_refused(name: str) -> None:
    given: dict[str, Any] = {name: ""}
    with pytest.raises(ValueError, match=f'single: {name}: expected a text, found ""; leave it out for a lock'):
        single("x", **given)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"id": 5}, "single: id: expected a text, found 5 (int): write it in quotes, or use str()"),
        ({"every": 60}, "single: every: expected a text, found 60 (int)"),
        ({"timezone": None}, "single: timezone: expected a text, found None (NoneType)"),
        ({"name": 7}, "single: name: expected a text, found 7 (int)"),
        ({"lease": "90"}, "single: lease: expected a number of seconds, found '90' (str)"),
    ],
)
def test_a_wrong_type_is_named_as_the_caller_wrote_it(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TypeError) as caught:
        single(**{"name": "x", **given})
    assert sentence in str(caught.value)


@pytest.mark.parametrize("lease", [math.nan, math.inf, -1.0])
def test_a_lease_is_a_length(lease: float) -> None:
    with pytest.raises(ValueError, match=f"single: lease: expected a number of seconds above 0, found {lease}"):
        single("x", lease=lease)


def test_more_than_one_key_is_refused() -> None:
    with pytest.raises(ValueError, match="single: expected one of tick, every and id, found every and id"):
        single("x", every="1h", id="1")


def test_a_refusal_of_the_daemon_is_raised_as_it_is(daemon: FakeDaemon) -> None:
    daemon.answers["exec"] = refusal("bad_argument", "every: expected a duration", "look")
    with (
        pytest.raises(RefusedError, match=r"^every: expected a duration$"),
        single("x", every="5x", socket=daemon.path),
    ):
        pytest.fail("it must not run")
