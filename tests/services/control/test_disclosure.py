"""Viewers see only fields that the table lists; every field of every event and answer is in the table."""

from __future__ import annotations

import json
import uuid
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from support import servers

from coordd.adapters.ledger.redis_ledger import RedisLedger
from coordd.core.wire.events import Action, Candidacy, TaskFailed, TaskSent, WorkerElect, flatten
from coordd.errors import RefusedError
from coordd.services.control import disclosure, doctor as checkup
from coordd.services.control.callers import OPERATOR, VIEWER, Caller
from coordd.services.control.disclosure import METHODS, reason, shown, undecided, undecided_events
from coordd.services.control.methods import Methods
from coordd.services.ledger import boottime
from coordd.services.views.troubles import Found, Trouble

HEAD = {"hostname": "a", "pid": 1, "incarnation": "1-a", "seq": 1, "utcoffset": 0}


def test_every_field_of_every_event_is_decided_upon() -> None:
    assert undecided_events() == []


def test_an_event_that_nobody_decided_about_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    less = {name: shape for name, shape in disclosure.EVENTS["task-sent"].items() if name != "token"}
    monkeypatch.setitem(disclosure.EVENTS, "task-sent", less)
    monkeypatch.delitem(disclosure._ACTION, "digest")
    assert undecided_events() == ["task-sent.token", "action.digest"]  # and nothing else


def test_every_method_is_decided_upon() -> None:
    table = Methods.table(Methods.__new__(Methods))

    assert sorted(table) == sorted(METHODS)


def test_a_method_that_nobody_decided_about_tells_viewers_nothing() -> None:
    with pytest.raises(RefusedError):
        shown("brand.new", {"args": "x"})


@pytest.mark.parametrize(
    ("role", "told"), [(OPERATOR, "j#1: exit code 1: KeyError sekret"), (VIEWER, "j#1: exit code 1: (hidden)")]
)
def test_doctor_tells_viewers_the_reason_of_an_unknown_run_as_why_does(
    monkeypatch: pytest.MonkeyPatch, role: int, told: str
) -> None:
    async def look() -> Found:
        return Found(unknown=(Trouble("j#1", "j", "exit code 1: KeyError sekret"),))

    async def nothing(*_: Any, **__: Any) -> list[Any]:
        return []

    methods: Any = Methods.__new__(Methods)
    methods._checked, methods._troubles = (boottime(), []), SimpleNamespace(look=look)
    methods._lookups, methods.checks, methods.input_lines = SimpleNamespace(do=nothing), None, nothing
    methods._driver = methods._ledger = methods._ledger_url = None
    monkeypatch.setattr(checkup, "cluster_checks", nothing)
    caller = Caller(1, frozenset(), role, 1, "ann")
    answer = trio.run(partial(methods.doctor, {}, caller))
    seen = answer if role == OPERATOR else shown("doctor", answer)
    assert [one["text"] for one in seen] == [told]


def test_a_field_that_nobody_decided_about_is_found_and_not_shown() -> None:
    answer = {"id": "j#1", "attempts": [{"attempt": 0, "argv": ["x"]}], "env": {"A": "x"}}
    assert undecided(METHODS["run.show"], answer) == [".env", ".attempts[].argv"]
    assert shown("run.show", answer) == {"id": "j#1", "attempts": [{"attempt": 0}]}
    assert shown("run.list", [{"id": "j#1", "env": "x"}]) == [{"id": "j#1"}]
    assert shown("run.list", {"id": "another shape"}) is None


@pytest.mark.parametrize(
    "event",
    [
        WorkerElect(
            id="j#1/0",
            topic="command",
            candidacy=Candidacy(1, 2, "a.1"),
            action=Action("j", "j#1", args='{"who": "sekret"}'),
        ),
        TaskSent(uuid="u", name="j", run="j#1", args='["sekret"]', kwargs='{"who": "sekret"}', nonce="sekret"),
        TaskFailed(
            uuid="u",
            run="j#1",
            result="sekret",
            exception="sekret",
            traceback="sekret",
            reason='exit code 1: KeyError: "sekret"',
        ),
    ],
)
def test_no_event_tells_an_argument(event: Any) -> None:
    told = shown("events.subscribe", {"event": flatten(event, **HEAD)})  # type: ignore[arg-type]  # JSON of a known shape
    assert "sekret" not in json.dumps(told)
    assert told["event"]["type"]
    assert told["event"]["hostname"] == "a"


def test_an_event_of_a_type_that_nobody_knows_has_only_its_head() -> None:
    assert shown("events.subscribe", {"event": {"type": "x-new", "pid": 1, "secret": "s"}}) == {
        "event": {"type": "x-new", "pid": 1}
    }


@pytest.mark.parametrize(
    ("recorded", "told"),
    [
        ("", ""),
        ("exit code 3", "exit code 3"),
        ("cancelled by ann", "cancelled by ann"),
        ("exit code 1: ValueError: customer 42", "exit code 1: (hidden)"),
        ('the value of "who" is too long', "the value of (hidden) is too long"),
        ('an open "quote', "an open (hidden)"),
    ],
)
def test_a_reason_tells_viewers_what_happened_and_not_with_what(recorded: str, told: str) -> None:
    assert reason(recorded) == told


def test_every_field_of_the_status_of_a_redis_ledger_is_decided_upon() -> None:
    with servers.redis() as server:
        ledger = RedisLedger(server.url, 5.0, cluster=uuid.uuid4().hex, fresh=True)
        try:
            assert undecided(METHODS["ledger.status"], ledger.status()) == []
        finally:
            ledger.close()


@pytest.mark.parametrize(
    ("text", "shown_text"),
    [
        ("no quotes: it stays", "no quotes: it stays"),
        ('argv: found "a "b c" d"; write a list', "argv: found (hidden); write a list"),
        ('found "cut off', "found (hidden)"),
        ('found "a" and "cut', "found (hidden)"),
    ],
)
def test_of_a_sentence_what_its_quotes_may_hold_is_hidden(text: str, shown_text: str) -> None:
    assert disclosure.sentence(text) == shown_text


def test_of_a_reason_a_quote_that_its_colon_cuts_is_hidden() -> None:
    assert reason('it said "a" and "x sekret: y"') == "it said (hidden): (hidden)"
