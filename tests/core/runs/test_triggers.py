"""Triggers: a node's answer to the caller, and the requests that the node stores until the ledger has them."""

from __future__ import annotations

import pytest
from support.small_cluster import Cluster, Lone, asked_for, job

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Claim, Register
from coordd.core.ledger.words import CONFLICT, EXISTS, FINISHED, NEW_RULES, OK, RULES_SPOKEN, UNAVAILABLE, UNRECORDED
from coordd.core.runs import triggers
from coordd.core.wire.events import Candidacy, Event, WorkerElectAck, WorkerHeartbeat, event_type


def types(events: list[Event]) -> list[str]:
    return [event_type(event) for event in events]


def with_peer(rules: int = RULES_SPOKEN) -> Lone:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.hear("b.1", WorkerHeartbeat(state="ready", rules=rules))
    lone.said.clear()
    return lone


def peer_stands(lone: Lone) -> None:
    """The peer's statement: this node's is the lower one."""
    lone.hear("b.1", WorkerElectAck(id="sales#1/0", candidacy=Candidacy(0, 10**6, "b.1"), acks="a.1"))


def test_record_and_election_begin_together_and_the_claim_makes_no_row() -> None:
    lone = with_peer()
    lone.do(lone.node.trigger, asked_for(), 3)
    assert (types(lone.said), lone.replies, len(lone.questions("register"))) == (["worker-elect"], [], 1)

    peer_stands(lone)
    (claim,) = lone.waiting(Claim)
    assert not claim.opens

    lone.answer("register", Answer(OK, state="pending"))
    assert [(reply.id, reply.result["durable"]) for reply in lone.replies] == [(3, "ledger")]
    assert types(lone.said) == ["worker-elect", "task-sent"]


def test_a_claim_that_was_quicker_than_the_record_is_asked_again_soon() -> None:
    lone = with_peer()
    lone.do(lone.node.trigger, asked_for(), 3)
    peer_stands(lone)

    for pause_s in (0.05, 0.1, 0.2):  # as long as the run has been pursued already
        lone.answer("claim", Answer(UNRECORDED))
        assert lone.waiting(Claim) == []
        lone.wait(pause_s)
    lone.answer("register", Answer(OK, state="pending"))
    lone.answer("claim", Answer(UNRECORDED))
    lone.wait(1.0)

    assert [claim.opens for claim in lone.waiting(Claim)] == [True]


def test_the_wait_for_a_record_is_bounded() -> None:
    lone = with_peer()
    lone.do(lone.node.trigger, asked_for(), 3)
    peer_stands(lone)
    asked = 0
    while lone.node.pursuits.pursuits and asked < 100:
        if lone.waiting(Claim):
            asked += 1
            lone.answer("claim", Answer(UNRECORDED))
        lone.pass_time(0.005)
        lone.wait(0.0)

    assert 5 < asked < 20  # the pauses double
    assert lone.node.pursuits.epitaphs == {}  # a sweep that shows the row begins again


def test_a_refused_trigger_is_given_up_on_a_node_whose_claim_had_no_answer_and_that_cannot_take_it_now() -> None:
    lone = with_peer()
    lone.do(lone.node.trigger, asked_for(), 3)
    peer_stands(lone)
    lone.answer("register", Answer(UNAVAILABLE))
    lone.node.triggers.not_kept("sales#1")  # its disk is full: it was not accepted
    lone.answer("claim", Answer(UNAVAILABLE))
    lone.do(lone.node.abstaining.take, {"sales": "check room is unhealthy"})

    for _ in range(40):
        lone.wait(0.5)

    assert lone.waiting(Claim) == []
    assert lone.node.pursuits.pursuits == {}


def test_beside_a_member_of_an_older_version_the_record_comes_first() -> None:
    lone = with_peer(rules=NEW_RULES)

    lone.do(lone.node.trigger, asked_for(), 3)

    assert (lone.said, len(lone.questions("register"))) == ([], 1)


def test_while_the_ledger_does_not_answer_nothing_is_proposed() -> None:
    lone = with_peer()
    lone.do(lone.node.trigger, asked_for("sales#1"), 3)
    lone.answer("register", Answer(UNAVAILABLE))
    lone.said.clear()

    lone.do(lone.node.trigger, asked_for("sales#2"), 4)

    assert lone.said == []


def test_a_trigger_is_answered_when_the_ledger_has_it() -> None:
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
    assert lone.replies[1].result == {"durable": "node"}, "the ledger does not have it yet"
    assert lone.node.requests["sales#1"].args == '{"day":"1"}'


def test_the_ledgers_conflict_is_the_callers_error() -> None:
    lone = Lone(job()).ready()
    lone.do(lone.node.trigger, asked_for(), 3)

    ready = lone.answer("register", Answer(CONFLICT, state="success"))

    assert [(reply.kind, reply.result) for reply in lone.replies] == [("conflict", {})]
    assert ready.requests_done == []  # nothing of it is on the disk
    assert [claim.opens for claim in lone.waiting(Claim)] == [False]
    lone.answer("claim", Answer(FINISHED, state="success"))
    assert lone.node.pursuits.pursuits == {}


def test_a_trigger_that_exists_is_the_same_run() -> None:
    lone = Lone(job()).ready()
    lone.do(lone.node.trigger, asked_for(), 3)

    lone.answer("register", Answer(EXISTS, state="success"))

    assert [(reply.kind, reply.result["state"]) for reply in lone.replies] == [("", "success")]
    lone.answer("claim", Answer(FINISHED, state="success"))
    assert (types(lone.said), lone.node.pursuits.pursuits) == (["worker-elect"], {})


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
