"""`publish`: what becomes of a message before it is recorded, and what is refused."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from support.small_cluster import EPOCH

from coordd.config.hooks.publisher import PIECES, PUBLISH, Publisher
from coordd.core.jobs.arguments import unpacked
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ready import Now, Reply
from coordd.errors import RefusedError
from coordd.services.publishing import recording

OK = Reply(1, {"durable": "ledger", "state": "pending"})
JOB = Publisher(name="q", to=("events",)).job(60.0)


class Machine:
    """A node with one destination. It remembers what was triggered."""

    def __init__(self, reply: Reply = OK) -> None:
        self.triggered: list[Registration] = []
        self.pursuits: dict[str, Any] = {}
        pursued = SimpleNamespace(pursuits=self.pursuits)
        self.node = SimpleNamespace(jobs={PUBLISH + "q": JOB}, hostname="a", concurrency={}, pursuits=pursued)
        self._reply = reply

    def now(self) -> Now:
        return Now(1.0, EPOCH)

    async def trigger(self, of: Registration) -> Reply:
        self.triggered.append(of)
        return self._reply

    def publish(self, body: Any, *, ident: str = "", expires: str = "") -> dict[str, Any]:
        this: Any = self

        async def call() -> dict[str, Any]:
            return await recording.publish(this, JOB, body, ident=ident, expires=expires, by="ann")

        return trio.run(call)

    def message(self) -> dict[str, Any]:
        pieces = {**JOB.params, **unpacked(self.triggered[-1].args)}
        said: dict[str, Any] = json.loads("".join([pieces[name] for name in PIECES]))
        return said


@pytest.mark.parametrize(
    ("body", "text", "kind"),
    [
        ("hello {x}", "hello {x}", "text/plain"),
        ({"a": [1, None]}, '{"a": [1, null]}', "application/json"),
        ("ü" * 3000, "ü" * 3000, "text/plain"),
    ],
)
def test_a_message_is_recorded_whole(body: Any, text: str, kind: str) -> None:
    machine = Machine()

    assert machine.publish(body, ident="7", expires="1m") == {"id": "hook~publish.q#7", "durable": "ledger"}
    assert machine.message() == {"body": text, "kind": kind, "expires_s": 60.0}


def test_each_message_without_an_id_is_another_one() -> None:
    machine = Machine()

    assert machine.publish("x")["id"] != machine.publish("x")["id"]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"body": "x" * 30_000}, "too_large"),
        ({"body": "x", "expires": "soon"}, "invalid_params"),
        ({"body": "x", "ident": "a b"}, "invalid_params"),
    ],
)
def test_what_cannot_be_recorded_is_refused(said: dict[str, Any], kind: str) -> None:
    machine = Machine()

    with pytest.raises(RefusedError) as caught:
        machine.publish(said.pop("body"), **said)
    assert (caught.value.kind, machine.triggered) == (kind, [])


def test_a_full_backlog_takes_no_more_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "BACKLOG_MAX", 2)
    machine = Machine()
    machine.pursuits.update({str(place): pursued(name) for place, name in enumerate([JOB.name, "load", "load"])})
    machine.publish("x")
    machine.pursuits["3"] = pursued(JOB.name)

    with pytest.raises(RefusedError, match="2 messages of this destination wait: at most 2 may") as caught:
        machine.publish("x")
    assert (caught.value.kind, len(machine.triggered)) == ("try_later", 1)


def pursued(job: str) -> Any:
    return SimpleNamespace(action=SimpleNamespace(job=job))


def test_an_unknown_destination_names_the_known_ones() -> None:
    this: Any = Machine()

    assert recording.publisher(this, "q") is JOB
    with pytest.raises(RefusedError, match=r"no \[publish.r\]") as caught:
        recording.publisher(this, "r")
    assert caught.value.hint == "known: q"
    with pytest.raises(RefusedError, match="the ledger says no"):
        Machine(Reply(1, {}, "conflict", "the ledger says no")).publish("x", ident="1")
