"""Changes of checks as events: once for each change, the same on all nodes, and nothing at a start in health."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.small_cluster import EPOCH

from coordd.config.hooks.events import CHECK_EVENTS
from coordd.config.hooks.hook import Hook
from coordd.core.checks.check import Check
from coordd.core.checks.state import STATES, UNKNOWN, Standing
from coordd.core.ledger.rows import Hold
from coordd.services.checks.news import News
from coordd.services.checks.service import Row
from coordd.services.hooks import happenings
from services.hooks.test_service import Machine

SHARED = Check(name="api", kind="http", url="http://h/", scope="cluster", job="sales")
OWN = Check(name="room", kind="disk", path="/")


def row(
    check: Check, state: str, since: float, node: str = "a", reported: Hold | None = None, was: str = UNKNOWN
) -> Row:
    return Row(check, node, Standing(state=state, since=since, text=f"it is {state}", was=was), reported)


def keys(news: News, *rows: Row) -> list[tuple[str, str]]:
    made = [happenings.check_changed(change) for change in news.of(rows)]
    return [(one.event, one.ident()) for one in made]


def test_hooks_know_all_states_of_checks() -> None:
    assert {f"check.{state}" for state in STATES} == set(CHECK_EVENTS)


def test_a_change_of_a_shared_check_is_one_event_on_all_nodes() -> None:
    first, other, late = News(), News(), News()
    good, bad = row(SHARED, "healthy", EPOCH), row(SHARED, "unhealthy", EPOCH + 5.0)
    assert keys(first, good) == keys(other, good) == [], "it is well when the daemon starts"
    told = keys(first, bad)
    assert [event for event, _ in told] == ["check.unhealthy"]
    assert keys(other, row(SHARED, "unhealthy", EPOCH + 5.0, node="b")) == told, "another node looks now"
    assert keys(late, bad) == told, "one that starts now, too"
    assert keys(first, bad) == []
    assert keys(first, row(SHARED, "unhealthy", EPOCH + 9.0)) == [], "the same state"


def test_a_node_that_never_saw_the_state_before_tells_the_change_as_the_others_do() -> None:
    (change,) = News().of([row(SHARED, "unhealthy", EPOCH, was="healthy")])
    assert change.before == "healthy"
    alert = Hold(by="nagios", at=EPOCH + 5.0, note="insecure")
    (change,) = News().of([row(SHARED, "degraded", EPOCH, reported=alert, was="healthy")])
    assert change.before == "degraded", "the report has made it worse"


def test_checks_of_each_node_are_events_of_their_own() -> None:
    assert len({keys(News(), row(OWN, "unhealthy", EPOCH, node=node))[0] for node in "ab"}) == 2


def test_what_is_not_known_yet_is_not_news_and_what_is_not_known_any_more_is() -> None:
    news = News()
    seen = [(state, EPOCH + at) for at, state in enumerate(("unknown", "healthy", "unknown", "healthy"))]
    told = [event for state, since in seen for event, _ in keys(news, row(OWN, state, since))]
    assert told == ["check.unknown", "check.healthy"]


def test_a_report_that_ends_is_a_change_back() -> None:
    news, alert = News(), Hold(by="nagios", at=EPOCH + 5.0, note="insecure")
    well = row(SHARED, "healthy", EPOCH)
    keys(news, row(SHARED, "unhealthy", EPOCH - 5.0))
    first = keys(news, well)
    keys(news, row(SHARED, "healthy", EPOCH, reported=alert))
    second = keys(news, well)
    assert [event for event, _ in (*first, *second)] == ["check.healthy"] * 2
    assert first != second, "the second is not taken for the first"


def test_a_hook_is_told_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(SHARED, "healthy", EPOCH), row(OWN, "healthy", EPOCH)]
    machine = Machine(tmp_path, monkeypatch, Hook(on=("check.*",), name="page"))
    service: Any = SimpleNamespace(rows=lambda: rows)
    machine.hooks.checks = service
    assert machine.look() == []
    rows[:] = [row(SHARED, "insecure", EPOCH + 1.0), row(OWN, "degraded", EPOCH + 1.0)]
    (own,) = machine.look(1.0)
    assert (own["event"], own["check"], own["node"], own["job"]) == ("check.degraded", "room", "a", None)
    (shared,) = machine.look(4.0)
    assert (shared["event"], shared["check"], shared["job"]) == ("check.insecure", "sales/api", "sales")
    assert shared["sentence"] == 'check sales/api is insecure ("it is insecure"), it was healthy'
    assert machine.look(60.0) == []
