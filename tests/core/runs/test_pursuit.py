"""A pursuit: when it claims, when it waits, and the only reasons that end it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.ledger_calls import held_of
from support.small_cluster import EPOCH, SETTINGS, Cluster, Lone, asked_for, job, open_answer, open_run

from coordd.core.context import STAGGER_MIN_S
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Claim
from coordd.core.ledger.words import (
    DIFFERS,
    EARLY,
    FINISHED,
    HELD,
    LIMITED,
    LOST,
    MISSED,
    RECOVERING,
    REVOKED,
    RHO,
    SUCCESS,
    UNAVAILABLE,
)
from coordd.core.runs import endings, pursuit as pursuing
from coordd.core.runs.pursued import BACKOFF_MAX_S, BACKOFF_MIN_S
from coordd.core.wire.events import TaskReceived, TaskSucceeded, WorkerHelloReply
from core.runs.claims import (
    LEASE_S,
    RENEW_S,
    RUN,
    claiming,
    claims,
    granted,
    hears_an_elect,
    of_b,
    out,
    pursued,
    started,
    sweeps,
)

# ---- its turn


def test_the_first_of_the_succession_claims_at_once() -> None:
    assert len(claims(claiming())) == 1


def test_the_second_claims_one_stagger_later() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    hears_an_elect(lone, clock=0)
    assert pursued(lone).rank == 1

    lone.wait(0.9 * lone.node.ctx.stagger_s)
    assert claims(lone) == []
    lone.wait(0.2 * lone.node.ctx.stagger_s)

    assert len(claims(lone)) == 1


def test_the_second_waits_for_the_whole_burst_that_the_first_has_to_claim() -> None:
    lone = Lone(job(overlap="allow"), peers=("b.1",)).ready()
    for number in range(20):
        hears_an_elect(lone, f"sales#{number}", clock=0)
    begun = lone.now.mono

    turns = [pursuit.at - begun - lone.node.ctx.stagger_s for pursuit in lone.node.pursuits.pursuits.values()]

    assert turns == pytest.approx([number * pursuing.CLAIM_COST_S for number in range(20)], abs=1e-9)


def test_a_stagger_is_two_round_trips_of_the_ledger_as_measured() -> None:
    lone = Lone(job()).ready()
    assert lone.node.ctx.stagger_s == STAGGER_MIN_S

    for _ in range(100):
        lone.wait(RENEW_S)
        sent_at = lone.now.mono
        lone.pass_time(0.2)
        lone.answer("open", open_answer(), sent_at=sent_at)

    assert lone.node.ctx.stagger_s == pytest.approx(0.4, rel=0.05)


def test_who_abstained_claims_too_once_the_others_have_had_their_turn() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.node.ctx.impaired = "the disk is full"
    hears_an_elect(lone)
    lone.node.ctx.impaired = ""

    lone.wait(SETTINGS.election_timeout_s)
    assert claims(lone) == []
    lone.wait(2 * lone.node.ctx.stagger_s)

    assert len(claims(lone)) == 1


def test_who_cannot_take_it_looks_again_and_again() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.node.ctx.impaired = "the disk is full"
    hears_an_elect(lone)
    lone.sweep(open_run("sales#1"))

    lone.wait(60.0)
    assert claims(lone) == []
    assert pursued(lone).why == "this node cannot take it: the disk is full"
    lone.node.ctx.impaired = ""
    lone.wait(SETTINGS.election_timeout_s)

    assert len(claims(lone)) == 1


# ---- answers of the ledger


@pytest.mark.parametrize("answer", [Answer(FINISHED, state=SUCCESS), Answer(FINISHED, state=MISSED), Answer(REVOKED)])
def test_only_the_ledger_ends_a_pursuit(answer: Answer) -> None:
    lone = claiming()

    lone.answer("claim", answer)

    assert RUN not in lone.node.pursuits.pursuits
    assert not lone.notices  # only the node that made the decision writes a log line


def test_an_unanswered_claim_is_repeated_with_the_same_nonce_and_growing_pauses() -> None:
    lone = claiming()
    asked_at = []
    for _ in range(7):
        asked_at.append(lone.now.mono)
        lone.answer("claim", Answer(UNAVAILABLE))
        while not out(lone):
            lone.wait(0.25)

    pauses = [later - earlier for earlier, later in pairwise(asked_at)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert len({claim.nonce for claim in claims(lone)}) == 1  # the grant may exist already, under this nonce


@pytest.mark.parametrize(
    ("answer", "after_s"),
    [
        (Answer(EARLY, in_s=4.0), 4.0),
        (Answer(RECOVERING, left_s=4.0), 4.0),
        (Answer(RECOVERING, left_s=30.0), BACKOFF_MAX_S),  # a person may end the quarantine sooner
        (Answer(LIMITED, by="suspended", in_s=5.0), 5.0),
        (Answer(LIMITED, by="overlap with sales#0", in_s=0.1), BACKOFF_MIN_S),
        (Answer(DIFFERS), BACKOFF_MAX_S),
    ],
)
def test_a_claim_that_is_put_off_is_made_again(answer: Answer, after_s: float) -> None:
    lone = claiming()
    lone.answer("claim", answer)

    lone.wait(after_s - 0.01)
    assert not out(lone)
    lone.wait(0.02)

    assert out(lone)


def test_lost_means_the_next_attempt_when_it_is_due() -> None:
    lone = claiming()

    lone.answer("claim", Answer(LOST, attempt=1, in_s=30.0))
    lone.wait(28.9)
    assert not out(lone)
    lone.wait(0.2)  # it was elected a second ahead

    assert out(lone)
    assert [claim.attempt for claim in claims(lone)] == [0, 1]
    assert claims(lone)[0].nonce != claims(lone)[1].nonce


# ---- granted


def test_the_lease_is_counted_from_when_the_claim_left() -> None:
    lone = claiming()
    sent_at = lone.now.mono
    lone.pass_time(1.5)

    lone.answer("claim", granted(left_s=60.0), sent_at=sent_at)

    (launch,) = lone.launches
    assert launch.deadline == pytest.approx(sent_at + 60.0 * (1 - 2 * RHO))


def test_a_grant_that_comes_too_late_to_start_is_left_to_lapse() -> None:
    lone = claiming()
    sent_at = lone.now.mono
    lone.pass_time(LEASE_S * (1 - 2 * RHO) - SETTINGS.kill_grace_s)

    lone.answer("claim", granted(), sent_at=sent_at)

    assert (lone.launches, lone.node.pursuits.running) == ([], {})
    assert pursued(lone).phase == "held"


def test_a_token_that_others_drew_meanwhile_does_not_spoil_our_grant() -> None:
    lone = claiming()
    lone.hear("b.1", of_b(TaskReceived, run="sales#2", token=9))  # granted after our run, but heard of before

    lone.answer("claim", granted(token=8))

    assert [launch.token for launch in lone.launches] == [8]
    assert lone.node.ctx.tokens["sales"] == 9


def test_a_token_below_one_that_was_seen_before_we_asked_is_not_used() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.hear("b.1", of_b(TaskReceived, run="sales#2", token=9))
    hears_an_elect(lone)
    lone.wait(1.0)

    lone.answer("claim", granted(token=8))

    assert lone.launches == []
    assert [notice.event for notice in lone.notices] == ["token.went_back"]


@pytest.mark.parametrize("ledger_known", [False, True])
@pytest.mark.parametrize("word", ["hello-reply", "task"])
def test_a_token_of_the_future_that_a_peer_claims_refuses_no_grant(word: str, ledger_known: bool) -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    present = int(EPOCH * 1e6)
    for token in (present + 10_000_000, 2**53 - 1):
        if ledger_known:
            lone.node.ctx.compare_clocks(EPOCH, lone.now.mono, lone.now)
        if word == "task":
            lone.hear("b.1", of_b(TaskReceived, run="sales#2", token=token))
        else:
            lone.hear("b.1", WorkerHelloReply(to="a.1", jobs_digest=lone.node.ctx.jobs_digest, tokens={"sales": token}))
    assert lone.node.ctx.tokens == {"sales": present + 10_000_000}, "a ledger a little ahead is believed"
    hears_an_elect(lone)
    lone.wait(1.0)

    lone.answer("claim", granted(token=present + 20_000_000))

    assert [launch.token for launch in lone.launches] == [present + 20_000_000]
    assert [notice.event for notice in lone.notices] == ["token.not_believed"]


def test_a_repeated_grant_keeps_the_floor_of_its_first_question() -> None:
    lone = claiming()
    lone.answer("claim", Answer(UNAVAILABLE))  # the ledger granted the run, and the reply was lost
    lone.hear("b.1", of_b(TaskReceived, run="sales#2", token=9))
    lone.wait(BACKOFF_MIN_S)

    lone.answer("claim", granted(token=8))

    assert [launch.token for launch in lone.launches] == [8]


# ---- held: watch, and claim later


def test_held_is_claimed_again_when_a_whole_lease_was_watched() -> None:
    lone = claiming()
    lone.answer("claim", Answer(HELD, by="b.1", left_s=LEASE_S, held=held_of(7, 1)))

    sweeps(lone, LEASE_S, started(left_s=0.0))
    assert not out(lone)
    sweeps(lone, RENEW_S, started(left_s=-5.0))

    watched = claims(lone)[-1].watched
    assert watched is not None
    assert (watched.token, watched.beat) == (7, 1)
    assert watched.unchanged_s >= LEASE_S * (1 + 2 * RHO)


def test_a_holder_that_renews_is_left_alone() -> None:
    lone = claiming()
    lone.answer("claim", Answer(HELD, by="b.1", left_s=LEASE_S, held=held_of(7, 1)))

    for beat in range(2, 60):
        sweeps(lone, RENEW_S, started(beat))

    assert len(claims(lone)) == 1


def test_an_outage_begins_the_watch_anew_however_short() -> None:
    lone = claiming()
    lone.answer("claim", Answer(HELD, by="b.1", left_s=LEASE_S, held=held_of(7, 1)))
    sweeps(lone, 50.0, started())
    lone.do(lone.node.look_again)
    lone.answer("open", Answer(UNAVAILABLE))  # at this moment the holder's state is unknown

    sweeps(lone, LEASE_S, started(left_s=0.0))
    assert len(claims(lone)) == 1
    sweeps(lone, 2 * RENEW_S, started(left_s=0.0))

    assert len(claims(lone)) == 2


def test_answers_too_far_apart_begin_the_watch_anew() -> None:
    lone = claiming()
    lone.answer("claim", Answer(HELD, by="b.1", left_s=LEASE_S, held=held_of(7, 1)))
    lone.wait(RENEW_S)
    lone.sweep(started())
    since = pursued(lone).watch.since  # type: ignore[union-attr]  # None would fail here
    lone.pass_time(RENEW_S + SETTINGS.ledger_timeout_s + 1.0)  # this node stood still

    lone.sweep(started())

    assert pursued(lone).watch.since > since  # type: ignore[union-attr]  # None would fail here


def test_those_who_wait_for_a_lapse_come_one_after_the_other() -> None:
    first, second = claiming(), Lone(job(), peers=("b.1",)).ready()
    hears_an_elect(second, clock=0)
    second.wait(1.0)
    for lone in (first, second):
        lone.answer("claim", Answer(HELD, by="c.1", left_s=10.0, held=held_of(7, 1)))

    waits = [pursued(lone).at - lone.now.mono for lone in (first, second)]

    assert waits[1] - waits[0] == pytest.approx(second.node.ctx.stagger_s)


# ---- budget


def test_no_more_runs_than_the_budget_and_the_next_as_soon_as_one_ends() -> None:
    lone = Lone(job(overlap="allow"), job("urgent", priority=9)).ready()
    rows = [open_run(f"sales#{number}") for number in range(4)]
    lone.sweep(*rows, open_run("urgent#1"))
    assert len(lone.questions("claim")) == SETTINGS.budget_client

    lone.answer("claim", granted(7))
    lone.answer("claim", granted(8))
    lone.wait(2.0)
    assert lone.questions("claim") == []
    lone.do(lone.node.runner_ended, lone.launches[0], "success", 0, "", "", 1.0)

    assert [claim.of.run for claim in lone.waiting(Claim)] == ["urgent#1"]  # before older runs


@pytest.mark.parametrize(
    "answer", [Answer(UNAVAILABLE), Answer(HELD), Answer(FINISHED, state=SUCCESS), Answer(DIFFERS)]
)
def test_a_claim_that_comes_to_nothing_costs_no_budget(answer: Answer) -> None:
    lone = claiming()

    lone.answer("claim", answer)

    assert (lone.node.pursuits.open_claims, lone.node.pursuits.running) == ([], {})


# ---- a queue of runs of one job


def test_the_first_in_the_queue_asks_again_as_soon_as_a_run_has_ended() -> None:
    lone = Lone(job(overlap="queue"), peers=("b.1",)).ready()
    lone.sweep(*[open_run(f"sales#{number}", wall=EPOCH + number) for number in (2, 3)])
    for _ in range(6):  # both now look at long intervals
        while lone.questions("claim"):
            lone.answer("claim", Answer(LIMITED, by="overlap with sales#1", in_s=1.0))
        lone.wait(10.0)
    while lone.questions("claim"):
        lone.answer("claim", Answer(LIMITED, by="overlap with sales#1", in_s=1.0))

    lone.hear("b.1", of_b(TaskSucceeded, run="sales#1"))
    lone.wait(0.1)

    assert [claim.of.run for claim in lone.waiting(Claim)] == ["sales#2"]


def test_an_end_that_is_heard_while_the_claim_is_out_is_not_lost() -> None:
    lone = claiming(job(overlap="queue"))
    for _ in range(6):
        lone.answer("claim", Answer(LIMITED, by="overlap with sales#0", in_s=1.0))
        lone.wait(10.0)
    assert out(lone)

    lone.hear("b.1", of_b(TaskSucceeded, run="sales#0"))
    lone.answer("claim", Answer(LIMITED, by="overlap with sales#0", in_s=1.0))  # the answer was made before it ended
    lone.wait(1.0)

    assert out(lone)


# ---- several nodes


def test_when_the_holder_dies_exactly_one_of_the_others_takes_over() -> None:
    cluster = Cluster("a", "b", "c", jobs=[job()])
    cluster.trigger("a", asked_for())
    assert cluster.launches(RUN) == [("a", 0)]
    cluster.wait(20.0)

    cluster.kill("a")
    cluster.wait(LEASE_S)
    assert cluster.launches(RUN) == [("a", 0)]  # not before its lease has been watched until the end
    cluster.wait(2 * RENEW_S + LEASE_S * 0.1)

    assert len(cluster.launches(RUN)) == 2
    assert cluster.launches(RUN)[1][1] == 1


def test_a_late_joiner_takes_over_what_it_never_saw_begin() -> None:
    cluster = Cluster("a", jobs=[job()])
    cluster.trigger("a", asked_for())
    cluster.wait(10.0)
    cluster.boot("b", 1)
    cluster.start("b")
    cluster.kill("a")

    cluster.wait(LEASE_S + 3 * RENEW_S)

    assert cluster.launches(RUN) == [("a", 0), ("b", 1)]


def test_without_a_bus_the_ledger_alone_makes_it_one_launch() -> None:
    cluster = Cluster("a", "b", jobs=[job(every_s=60.0)])
    for shell in cluster.shells.values():
        shell.bus = False

    cluster.wait(70.0)

    assert len(cluster.launches("sales@2025-01-29T08:01:00Z")) == 1


def test_epitaphs_and_ends_are_remembered_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pursuing, "EPITAPHS_MAX", 10)
    monkeypatch.setattr(endings, "EPITAPHS_MAX", 10)
    lone = Lone(job(), peers=("b.1",)).ready()

    for number in range(50):
        run = f"sales#{number}"
        lone.hear("b.1", of_b(TaskSucceeded, run=run))
        hears_an_elect(lone, run)
        lone.wait(1.0)
        while lone.questions("claim"):
            lone.answer("claim", Answer(FINISHED, state=SUCCESS))

    assert len(lone.node.pursuits.endings.finals) <= 10
    assert len(lone.node.pursuits.epitaphs) == 10
    assert lone.node.pursuits.pursuits == {}
