"""Which triggers of a job with `dedupe` are the same run."""

from __future__ import annotations

import msgspec
import pytest
from support.small_cluster import job

from coordd.core.jobs.job import Dedupe, Job
from coordd.core.jobs.trigger import Trigger
from coordd.core.triggers.arrivals import Arrival, run_of
from coordd.core.triggers.duplicates import ident_of, run_of_arrival

AT = 1795560600.0  # 2026-11-24T22:50:00Z, so 23:50 in Berlin


@pytest.mark.parametrize(
    ("dedupe", "values", "ident"),
    [
        (Dedupe("{customer}-{day}"), {"customer": "acme", "day": "2026-11-24"}, "acme-2026-11-24"),
        (Dedupe("{customer}", 3600.0), {"customer": "acme"}, "acme.2026-11-24T22:00:00Z"),
        (Dedupe("all", 86400.0), {}, "all.2026-11-23T23:00:00Z"),
    ],
)
def test_the_key_is_the_id(dedupe: Dedupe, values: dict[str, str], ident: str) -> None:
    assert ident_of(dedupe, values, "Europe/Berlin", AT) == ident


def test_a_key_that_no_id_may_be_is_hashed() -> None:
    dedupe = Dedupe("{customer}")
    idents = [ident_of(dedupe, {"customer": said}, "UTC", AT) for said in ("a b", "a/b", "x" * 200, "", "ü")]

    assert len(set(idents)) == 5
    assert all(one.startswith("key.") and len(one) == 28 for one in idents)


def test_a_period_ends_at_its_zone_s_midnight() -> None:
    dedupe = Dedupe("{c}", 86400.0)
    idents = [ident_of(dedupe, {"c": "a"}, "Europe/Berlin", AT + more) for more in (0.0, 599.0, 601.0)]

    assert idents[0] == idents[1] != idents[2]


def keyed() -> Job:
    return msgspec.structs.replace(job("etl"), params={"c": "", "n": "1"}, dedupe=Dedupe("{c}"))


def test_two_arrivals_with_one_key_are_one_run_and_without_dedupe_two() -> None:
    trigger = Trigger(kind="command", name="t", args={"c": "{trigger.key}", "n": "2"})
    other = Trigger(kind="command", name="u", args={"c": "{trigger.key}"})
    arrival = Arrival("acme", {"key": "acme"})

    assert run_of_arrival(keyed(), trigger, arrival) == run_of_arrival(keyed(), other, arrival) == "etl#acme"
    plain = msgspec.structs.replace(keyed(), dedupe=None)
    assert run_of_arrival(plain, trigger, arrival) != run_of_arrival(plain, other, arrival)


def test_an_arrival_whose_values_no_argument_may_have_keeps_its_own_id() -> None:
    trigger = Trigger(kind="http", name="t", args={"c": "{trigger.body.none}"})

    assert run_of_arrival(keyed(), trigger, Arrival("k", {"key": "k"})) == run_of("etl", "t", "k")
