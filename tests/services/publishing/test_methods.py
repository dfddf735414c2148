"""The backlog of messages, as people and monitors see it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
from support.small_cluster import EPOCH

from coordd.config.hooks.publisher import PUBLISH, Publisher
from coordd.core.ready import Now
from coordd.services.control.callers import VIEWER, Caller
from coordd.services.control.disclosure import METHODS, undecided
from coordd.services.publishing.checks import message_checks
from coordd.services.publishing.methods import MessageMethods
from coordd.services.publishing.passing import Passing

OPS, QUIET = Publisher(name="ops", to=("amqp://mq-1/?queue=q", "file:///o")), Publisher(name="quiet", to=("events",))


def pursued(job: str, attempt: int, at: float) -> Any:
    return SimpleNamespace(attempt=attempt, action=SimpleNamespace(job=job, fire_at=at))


class Ledger:
    """Two dead letters of one destination."""

    async def query(self, ask: Any) -> Any:
        return {"ops": 2, "quiet": 0}


def methods() -> Any:
    runs = [pursued(PUBLISH + "ops", 0, EPOCH - 10), pursued(PUBLISH + "ops", 2, EPOCH - 60), pursued("load", 0, EPOCH)]
    node = SimpleNamespace(pursuits=SimpleNamespace(pursuits=dict(enumerate(runs))))
    made: Any = MessageMethods.__new__(MessageMethods)
    made._driver = SimpleNamespace(node=node, now=lambda: Now(1.0, EPOCH))
    made._ledger = Ledger()
    made.publishers = (OPS, QUIET)
    made.passing = Passing("/nowhere", lambda: made.passing.pool, made._ledger)
    return made


def test_the_backlog_of_each_destination_is_listed_and_counted() -> None:
    made = methods()
    caller = Caller(1, frozenset(), VIEWER, 1, "ann")

    found = trio.run(made.message_list, {}, caller)
    assert undecided(METHODS["message.list"], found) == []
    assert [(one["name"], one["waiting"], one["again"], one["given_up"]) for one in found] == [
        ("ops", 2, 1, 2),
        ("quiet", 0, 0, 0),
    ]
    assert (found[0]["oldest"] < "2100", found[1]["oldest"]) == (True, None)
    made.passing.pool = SimpleNamespace(state=lambda to, *_: (len(to), {"RabbitMQ at mq-1:5672": "it hangs"}))
    assert made.counted(EPOCH) == {"ops": (2.0, 60.0, 1.0, 1.0), "quiet": (0.0, 0.0, 0.0, 0.0)}
    assert trio.run(made.message_list, {}, caller)[0]["failing"] == ["RabbitMQ at mq-1:5672: it hangs"]


def test_doctor_warns_while_messages_are_tried_again_or_an_address_fails() -> None:
    made = methods()
    first, second = message_checks(made._driver.node, made.publishers, made.passing)
    assert (first["state"], second["state"]) == ("warn", "ok")
    assert first["text"].endswith("; 2 wait, 1 of them to be tried again")
    made._driver.node.pursuits.pursuits.clear()
    made.passing.pool = SimpleNamespace(state=lambda *_: (1, {"RabbitMQ at mq-1:5672": "it hangs"}))
    first, second = message_checks(made._driver.node, made.publishers, made.passing)
    assert (first["state"], second["state"]) == ("warn", "ok")
    assert first["text"].endswith("; RabbitMQ at mq-1:5672 is tried last: it hangs")
