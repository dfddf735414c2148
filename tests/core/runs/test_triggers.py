"""Triggers: a node's answer to the caller, and the requests that the node stores until the ledger has them."""

from __future__ import annotations

import pytest
from support.small_cluster import Cluster, Lone, asked_for, job

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Claim, Register
from coordd.core.ledger.words import CONFLICT, EXISTS, OK, UNAVAILABLE
from coordd.core.runs import triggers
from coordd.core.wire.events import Event, event_type


def types(events: list[Event]) -> list[str]:
    return [event_type(event) for event in events]


def test_a_trigger_is_answered_when_the_ledger_has_it_and_before_the_election() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.do(lone.node.trigger, asked_for(), 3)
    assert (lone.replies, lone.said) == ([], [])

    lone.answer("register", Answer(OK, state="pending"))

    assert [(reply.id, reply.kind, reply.result["durable"]) for reply in lone.replies] == [(3, "", "ledger")]
    assert types(lone.said) == ["task-sent", "worker-elect"]


def test_with_the_ledger_away_a_trigger_is_kept_here_and_offered_again() -> None:
    lone = Lone(job()).ready()
    lone.do(lone.node.trigger, asked_for(), 3)

    lone.answer("register", Answer(UNAVAILABLE))
    assert [of.run for of in lone.kept] == ["sales#1"]
    assert [(reply.kind, reply.result["durable"]) for reply in lone.replies] == [("", "node")]
    lone.wait(triggers.REGISTER_AGAIN_S)
    lone.answer("register", Answer(UNAVAILABLE))
    lone.wait(triggers.REGISTER_AGAIN_S)
    lone.answer("register", Answer(OK, state="pending"))

    assert len(lone.replies) == 1  # the caller got one answer only
    assert lone.node.requests == {}
    assert [claim.attempt for claim in lone.waiting(Claim)] == [0]


def test_of_two_that_ask_for_the_same_run_the_late_answer_leaves_nothing_on_the_disk() -> None:
    """The second call reaches the ledger. The answer to the first call is lost (simulator, seed 97)."""
    lone = Lone(job()).ready()
    lone.do(lone.node.trigger, asked_for(), 3)
    lone.do(lone.node.trigger, asked_for(), 4)
    first, _ = lone.questions("register")
    del lone.open[first.id]
    lone.answer("register", Answer(OK, state="pending"))

    lone.do(lone.node.ledger_answered, first.id, Answer(UNAVAILABLE), lone.now.mono)
    lone.wait(triggers.REGISTER_AGAIN_S)
    ready = lone.answer("register", Answer(EXISTS, state="success"))

    assert [(reply.id, reply.kind) for reply in lone.replies] == [(4, ""), (3, "")]
    assert (ready.requests_done, lone.node.requests) == (["sales#1"], {})


def test_what_was_accepted_is_not_dropped_when_the_disk_is_full_later() -> None:
    """The same trigger comes twice. The disk accepts the first request, and is full at the
    second (simulator, seed 170).
    """
    lone = Lone(job()).ready()
    lone.do(lone.node.trigger, asked_for(), 3)
    lone.answer("register", Answer(UNAVAILABLE))
    lone.kept.clear()

    lone.do(lone.node.trigger, asked_for(), 4)
    lone.answer("register", Answer(UNAVAILABLE))

    assert lone.kept == []  # there is nothing that the disk could refuse
    assert [reply.result["durable"] for reply in lone.replies] == ["node", "node"]


def test_what_the_disk_has_not_taken_is_not_accepted_and_may_be_asked_for_again() -> None:
    lone = Lone(job()).ready()
    for reply in (3, 4):
        lone.do(lone.node.trigger, asked_for(), reply)
        lone.answer("register", Answer(UNAVAILABLE))
        assert [of.run for of in lone.kept] == ["sales#1"]
        lone.kept.clear()
        lone.node.triggers.not_kept("sales#1")
        assert lone.node.requests == {}


def test_a_trigger_says_how_old_it_is() -> None:
    lone = Lone(job()).ready()
    lone.do(lone.node.trigger, asked_for(), 3)
    assert lone.waiting(Register)[0].of.age_s == 0.0

    lone.answer("register", Answer(UNAVAILABLE))
    lone.wait(triggers.REGISTER_AGAIN_S)

    assert lone.waiting(Register)[0].of.age_s == pytest.approx(triggers.REGISTER_AGAIN_S)


def test_the_same_id_with_other_arguments_is_an_error_also_while_the_ledger_is_away() -> None:
    lone = Lone(job()).ready()
    lone.do(lone.node.trigger, asked_for(args='{"day":"1"}'), 1)
    lone.answer("register", Answer(UNAVAILABLE))

    lone.do(lone.node.trigger, asked_for(args='{"day":"2"}'), 2)
    lone.do(lone.node.trigger, asked_for(args='{"day":"1"}'), 3)
    lone.answer("register", Answer(UNAVAILABLE))

    assert [(reply.id, reply.kind) for reply in lone.replies] == [(1, ""), (2, "conflict"), (3, "")]
    assert lone.node.requests["sales#1"].args == '{"day":"1"}'


def test_the_ledgers_conflict_is_the_callers_error() -> None:
    lone = Lone(job()).ready()
    lone.do(lone.node.trigger, asked_for(), 3)

    ready = lone.answer("register", Answer(CONFLICT, state="success"))

    assert [reply.kind for reply in lone.replies] == ["conflict"]
    assert ready.requests_done == []  # nothing of it is on the disk
    assert lone.questions("claim") == []


def test_a_trigger_that_exists_is_the_same_run() -> None:
    lone = Lone(job()).ready()
    lone.do(lone.node.trigger, asked_for(), 3)

    lone.answer("register", Answer(EXISTS, state="success"))

    assert [(reply.kind, reply.result["state"]) for reply in lone.replies] == [("", "success")]
    assert (lone.said, lone.node.pursuits.pursuits) == ([], {})


def test_two_nodes_asked_for_the_same_id_at_once_make_one_run() -> None:
    cluster = Cluster("a", "b", jobs=[job()])
    for name in ("a", "b"):
        shell = cluster.shells[name]
        shell.do(shell.node.trigger, asked_for(), 1)

    cluster.wait(10.0)

    assert len(cluster.launches("sales#1")) == 1
    assert [len(shell.replies) for shell in cluster.shells.values()] == [1, 1]


def test_only_so_many_triggers_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "REQUESTS_MAX", 1)
    lone = Lone(job()).ready()

    lone.do(lone.node.trigger, asked_for("sales#1"), 1)
    lone.do(lone.node.trigger, asked_for("sales#2"), 2)

    assert [(reply.id, reply.kind) for reply in lone.replies] == [(2, "try_later")]
    assert list(lone.node.requests) == ["sales#1"]


def test_a_request_that_an_earlier_daemon_kept_is_offered_and_nobody_is_answered() -> None:
    lone = Lone(job()).ready()

    lone.do(lone.node.recover_request, asked_for())
    lone.answer("register", Answer(CONFLICT, state="success"))

    assert lone.replies == []
    assert [notice.event for notice in lone.notices] == ["request.dropped"]
