"""Changes of checks are told once: by the node that looks, when it has written them, whatever comes between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from support.small_cluster import job

from coordd.core.checks.check import Check, Use
from coordd.core.checks.state import Result, Standing
from coordd.core.ledger.rows import OF_CHECK, OF_REPORTED, Hold
from coordd.core.ready import Now
from coordd.errors import RefusedError
from coordd.services.checks.methods import CheckMethods
from coordd.services.checks.service import Row
from coordd.services.checks.view import lines, row_view
from coordd.services.control.callers import ADMIN
from coordd.services.control.disclosure import shown
from coordd.services.views.objects import instant
from services.checks.test_service import SHARED, Machine, Place


def test_a_change_is_told_once_and_jobs_are_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(monkeypatch)
    own = Check(name="room", kind="disk", path="/", fail_after=2, then="abstain")
    a = Machine(place, "a", own, sales=job())
    with capture_logs() as logs:
        for state in ("healthy", "unhealthy", "unhealthy", "unknown", "unknown"):
            a.checks._take(own, Result(state, f"it is {state}"))
            a.around()
    assert [(event.state, event.before) for event in a.told] == [("healthy", "unknown"), ("unhealthy", "healthy")]
    assert a.node.abstains_from == {"sales": "check room is unhealthy"}
    assert [(line["event"], line["log_level"]) for line in logs] == [
        ("check.changed", "info"), ("check.changed", "warning"), ("check.ignored", "warning"),
    ]  # fmt: skip
    [row] = a.checks.rows()
    assert (row.state, row.standing.problem) == ("unhealthy", "it is unknown")
    a.checks.use({})
    a.around()
    assert a.node.abstains_from == {}


@pytest.mark.parametrize(
    ("standing", "operators", "viewers"),
    [
        (
            Standing(state="unhealthy", text='at "sekret"', since=1.0),
            "unhealthy: \"at 'sekret'\"",
            "unhealthy: (hidden)",
        ),
        (Standing(state="degraded", since=1.0), "degraded", "degraded"),
        (
            Standing(state="healthy", problem="exit code 3: sekret", since=1.0),
            'it cannot look, so it counts for nothing: "exit code 3: sekret"',
            "it cannot look, so it counts for nothing: (hidden)",
        ),
    ],
)
def test_doctor_tells_viewers_nothing_of_what_a_check_saw(standing: Standing, operators: str, viewers: str) -> None:
    told = lines([Row(Check(name="room", kind="command"), "a", standing, None)])
    assert [one["text"] for one in told] == [operators]
    assert [one["text"] for one in shown("doctor", told)] == [viewers]


@pytest.mark.parametrize(
    ("found", "reported", "since"),
    [
        (("healthy", 10.0), None, 10.0),
        (("healthy", 10.0), ("unhealthy", 20.0), 20.0),  # it was said to be so since 10
        (("unhealthy", 30.0), ("unhealthy", 20.0), 20.0),
        (("unhealthy", 10.0), ("unhealthy", 20.0), 10.0),
        (("unhealthy", 10.0), ("healthy", 20.0), 10.0),
        (("unknown", 0.0), ("unknown", 20.0), 20.0),
    ],
)
def test_a_state_counts_since_what_made_it(
    found: tuple[str, float], reported: tuple[str, float] | None, since: float
) -> None:
    standing = Standing(state=found[0], since=found[1])
    report = Hold(by="ann", at=reported[1], until=99.0, note=f"{reported[0]} x") if reported else None
    row = Row(Check(name="room", kind="disk", path="/"), "a", standing, report)
    assert row.since == since
    assert row_view(row)["since"] == instant(since)


def test_the_next_checker_tells_of_a_change_from_what_the_one_before_found(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(monkeypatch)
    a, b = Machine(place, "a", SHARED), Machine(place, "b", SHARED)
    trio.run(a.checks.look_now, SHARED)
    a.around()
    b.sees = "unhealthy"
    trio.run(b.checks.look_now, SHARED)  # before it has looked around once
    b.around()
    b.sees = "healthy"
    for _ in range(2):
        trio.run(b.checks.look_now, SHARED)
        b.around()
    told = [[(event.before, event.state) for event in one.told] for one in (a, b)]
    assert told == [[("unknown", "healthy")], [("healthy", "unhealthy"), ("unhealthy", "healthy")]]


def test_a_change_is_told_although_another_node_becomes_the_checker_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(monkeypatch)
    a, b = Machine(place, "a", SHARED), Machine(place, "b", SHARED)
    a.around()
    trio.run(a.checks.look_now, SHARED)
    swept = dict(place.holds)
    place.mono += 1.0
    trio.run(b.checks.look_now, SHARED)  # before a has looked around
    a.around()
    b.around()
    assert [(event.before, event.state) for event in a.told + b.told] == [("unknown", "healthy")]
    b.sees = "unhealthy"
    trio.run(b.checks.look_now, SHARED)
    b.node.drains.holds = {OF_CHECK + "api": Hold(by="b", note=swept[OF_CHECK + "api"].note)}
    b.around()
    assert [event.state for event in b.told] == ["unhealthy"], "what was swept before says nothing"


def changes(machine: Machine) -> list[tuple[str, str]]:
    return [(event.before, event.state) for event in machine.told]


def test_a_sweep_between_the_two_words_on_a_bad_check_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(monkeypatch)
    a = Machine(place, "a", SHARED, sales=job(uses=(Use("api", "suspend"),)))
    trio.run(a.checks.look_now, SHARED)
    swept: dict[str, Hold] = {}
    place.meanwhile = lambda: swept.update(place.holds)
    a.sees = "unhealthy"
    trio.run(a.checks.look_now, SHARED)
    for holds in (swept, place.holds):
        a.node.drains.holds = holds
        a.around()
    assert changes(a) == [("unknown", "healthy"), ("healthy", "unhealthy")]


def test_changes_are_told_whatever_the_clocks_of_the_nodes_say(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(monkeypatch)
    a, b = Machine(place, "a", SHARED), Machine(place, "b", SHARED)
    ahead_s = {a: 3600.0, b: 300.0}
    for node in (a, b):
        node.now = lambda node=node: Now(place.mono, place.wall + ahead_s[node])  # type: ignore[method-assign,misc]  # it is one node
    for node in (a, b):
        for node.sees in ("healthy", "unhealthy"):
            trio.run(node.checks.look_now, SHARED)
            node.around()
        ahead_s[node] = 0.0  # its clock is set right
        for node.sees in ("healthy", "unhealthy"):
            trio.run(node.checks.look_now, SHARED)
            node.around()
    there_and_back = [("healthy", "unhealthy"), ("unhealthy", "healthy")]
    assert changes(a) == [("unknown", "healthy"), *there_and_back, there_and_back[0]]
    assert changes(b) == [there_and_back[1], *there_and_back, there_and_back[0]]


@pytest.mark.parametrize("told_by_the_dead_one", [True, False])
def test_a_report_is_told_by_one_checker_also_if_it_came_while_there_was_none(
    told_by_the_dead_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(monkeypatch)
    a, b = Machine(place, "a", SHARED), Machine(place, "b", SHARED)
    trio.run(a.checks.look_now, SHARED)
    for node in (a, b):
        node.around()
    place.mono += 5.0
    place.holds[OF_REPORTED + "api"] = Hold(by="nagios", at=place.wall, note="insecure somebody is in")
    if told_by_the_dead_one:
        a.around()
        trio.run(a.checks.look_now, SHARED)
    b.around()
    place.mono += 60.0
    for _ in range(2):
        trio.run(b.checks.look_now, SHARED)
        b.around()
    del place.holds[OF_REPORTED + "api"]
    b.around()
    told = [("healthy", "insecure")]
    assert changes(a)[1:] == (told if told_by_the_dead_one else [])
    assert changes(b) == [*([] if told_by_the_dead_one else told), ("insecure", "healthy")]


def test_a_node_without_the_tag_does_not_look_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check run` counts as any other look: what that node cannot see would be bad for all, and suspend jobs."""
    place = Place(monkeypatch)
    check = Check(name="api", kind="http", url="http://h/", scope="tag:gpu", fail_after=1, then="suspend")
    machine = Machine(place, "a", check, sales=job())
    machine.sees = "unhealthy"
    made: Any = CheckMethods.__new__(CheckMethods)
    made.checks, made._driver = machine.checks, machine
    made._audit = lambda *_: None
    caller: Any = SimpleNamespace(role=ADMIN, name="root")
    with pytest.raises(RefusedError, match="api is for nodes with the tag gpu, which a does not have") as caught:
        trio.run(made.check_run, {"name": "api"}, caller)
    assert (caught.value.kind, place.holds, place.suspensions) == ("other_node", {}, [])

    machine.node.settings = SimpleNamespace(tags=("gpu",))
    assert trio.run(made.check_run, {"name": "api"}, caller)["seen"] == "unhealthy"
    assert OF_CHECK + "api" in place.holds
