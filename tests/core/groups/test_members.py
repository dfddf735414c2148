"""The members of a group: how many, their ids and their arguments."""

from __future__ import annotations

import json

import pytest
from support.small_cluster import EPOCH, job

from coordd.core.groups.expand import OF_THE_RUN, Expand, group_of, how_it_ended, number_of
from coordd.core.groups.members import members_of
from coordd.core.jobs.job import is_named, scheduled_run


def values(expand: Expand, at: float = 0.0, zone: str = "UTC") -> list[str]:
    found = [json.loads(one.args) for one in members_of(job(expand=expand, timezone=zone), "sales#1", at)]
    assert len(found) == expand.count
    return [args[expand.key] for args in found]


def test_each_value_is_a_member() -> None:
    made = members_of(job(expand=Expand("region", ("eu", "us"))), "sales#1", 0.0, {"day": "x"})
    assert made == [("sales#1~0", '{"day": "x", "region": "eu"}'), ("sales#1~1", '{"day": "x", "region": "us"}')]


def test_a_job_without_expand_has_one_run() -> None:
    assert members_of(job(), "sales#1", 0.0) == [("sales#1", "{}")]


@pytest.mark.parametrize(
    ("chunk", "wanted"), [(2, ['["a", "b"]', '["c"]']), (3, ['["a", "b", "c"]']), (1, ['["a"]', '["b"]', '["c"]'])]
)
def test_a_chunk_is_a_list(chunk: int, wanted: list[str]) -> None:
    assert values(Expand("key", ("a", "b", "c"), chunk=chunk)) == wanted


def test_days_begin_on_the_day_of_the_run_in_the_zone_of_the_job() -> None:
    assert values(Expand("day", begin=OF_THE_RUN, days=2), 1_000_000_800.0) == ["2001-09-09", "2001-09-10"]
    assert values(Expand("day", begin=OF_THE_RUN, days=1), 1_000_000_800.0, "America/New_York") == ["2001-09-08"]
    assert values(Expand("day", begin="2024-02-28", days=3)) == ["2024-02-28", "2024-02-29", "2024-03-01"]
    assert values(Expand("day", begin="2024-02-28", days=3, chunk=2)) == [
        '["2024-02-28", "2024-02-29"]',
        '["2024-03-01"]',
    ]


@pytest.mark.parametrize(
    ("run", "group", "number"),
    [
        ("a@t~3", "a@t", 3),
        ("a#x~12", "a#x", 12),
        ("a@t", "a@t", None),
        ("hook~told#run.x", "hook~told#run.x", None),
        ("a#x~", "a#x~", None),
        ("a~1", "a~1", None),
    ],
)
def test_the_id_of_a_member_names_its_group(run: str, group: str, number: int | None) -> None:
    assert (group_of(run), number_of(run)) == (group, number)


def test_the_id_of_a_member_is_that_of_its_fire_time() -> None:
    run = scheduled_run("sales", EPOCH)
    assert is_named(run + "~7", "sales", EPOCH, scheduled=True)
    assert not is_named(run + "~7", "sales", EPOCH + 1, scheduled=True)
    assert not is_named(run + "~x", "sales", EPOCH, scheduled=True)
    assert is_named("sales#1~7", "sales", EPOCH, scheduled=False)


@pytest.mark.parametrize(
    ("states", "how"),
    [
        (["success"], "success"),
        (["success", "lost"], "failure"),
        (["failure", "missed"], "failure"),
        (["success", "missed"], "missed"),
    ],
)
def test_a_group_has_succeeded_if_all_members_have(states: list[str], how: str) -> None:
    assert how_it_ended(states) == how
