"""Every ledger adapter: the sweep in pages, and rows that no node settles."""

from __future__ import annotations

import pytest
from support.ledger_calls import EPOCH, LEASE_S, Nodes, watched_of

from coordd.core.ledger import requests
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import ListOpen, Page, Register, Revoke, Settle
from coordd.core.ledger.words import ABSENT, CLAIM_AHEAD_S, AttemptNumber

RUN = "gone#1"


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "OPEN_PAGE", 3)


def first_page(nodes: Nodes, *jobs: str) -> OpenAnswer:
    return nodes.ledger.ask(ListOpen(jobs=jobs))


def page_after(nodes: Nodes, before: OpenAnswer) -> OpenAnswer:
    assert before.after is not None
    return nodes.ledger.ask(Page(after=before.after))


# ---- pages


@pytest.mark.usefixtures("small_pages")
def test_the_open_rows_come_in_pages_each_once_also_where_many_are_due_at_the_same_instant(nodes: Nodes) -> None:
    names = ["a#1", "a#10", "a#2", "b#z", "b#\u00e9", "c#1", "c#\U0001f40e"]
    for name in reversed(names):
        nodes.ask(Register(of=nodes.of(name, age_s=60.0)))
    nodes.ask(Register(of=nodes.of("late#1")))

    first = first_page(nodes, "a", "b")
    second = page_after(nodes, first)
    third = page_after(nodes, second)

    assert [[row.run for row in one.runs] for one in (first, second, third)] == [
        names[:3],
        names[3:6],
        [names[6], "late#1"],
    ]
    assert (sorted(first.jobs), second.jobs, third.after) == (["a", "b"], {}, None)


@pytest.mark.usefixtures("small_pages")
def test_a_page_begins_after_a_row_that_has_ended_meanwhile(nodes: Nodes) -> None:
    for number in range(6):
        nodes.ask(Register(of=nodes.of(f"a#{number}", age_s=60.0)))
    first = first_page(nodes)
    assert first.after is not None

    nodes.ask(Revoke(run=first.after.run, by="ann"))
    nodes.ask(Revoke(run="a#3", by="ann"))

    assert [row.run for row in page_after(nodes, first).runs] == ["a#4", "a#5"]


@pytest.mark.usefixtures("small_pages")
def test_what_is_behind_a_whole_page_of_rows_that_nobody_settles_is_seen(nodes: Nodes) -> None:
    for number in range(3):
        grant = nodes.started(nodes.of(f"stuck#{number}", on_lost="hold", overlap="allow"))
        nodes.report(grant, "lost")
    nodes.clock.step(1.0)
    nodes.ask(Register(of=nodes.of("sales#1")))

    first = first_page(nodes)
    assert first.after is not None

    assert [row.run for row in page_after(nodes, first).runs] == ["sales#1"]


# ---- a node whose clock is ahead


def test_a_fire_time_far_ahead_is_never_recorded_and_settles_nothing(nodes: Nodes) -> None:
    ahead = nodes.of("sales@2025-01-29T11:00:00Z", fire_at=EPOCH + 3 * 3600.0)

    registered, claimed = nodes.ask(Register(of=ahead)), nodes.claim(ahead)

    for answer in (registered, claimed):
        assert (answer.word, answer.in_s) == ("early", 3 * 3600.0 - CLAIM_AHEAD_S)
    assert nodes.ledger.runs() == []
    soon = nodes.of("sales@2025-01-29T08:00:04Z", fire_at=EPOCH + 4.0)
    assert nodes.ask(Register(of=soon)).word == "ok"
    assert nodes.ask(Revoke(run=ahead.run, by="ann")).word == "ok"  # the time of a revoked run may be far ahead


def test_a_row_that_lies_far_ahead_all_the_same_is_nobodys_beginning(nodes: Nodes) -> None:
    ahead = nodes.of("sales@2025-01-29T11:00:00Z", fire_at=EPOCH + 3 * 3600.0)
    first_page(nodes, "sales")  # the ledger knows the job from now on
    nodes.clock.step(3 * 3600.0)
    nodes.granted(ahead)
    nodes.clock.step(-3 * 3600.0)
    nodes.ask(Register(of=nodes.of("sales@2025-01-29T08:00:01Z", fire_at=EPOCH + 1.0)))

    assert first_page(nodes, "sales").jobs["sales"].last_fire_at == EPOCH + 1.0


# ---- a clock that was set back


@pytest.mark.parametrize("seconds", [-10.0, -60.0, -3600.0])
def test_no_answer_lends_more_than_a_lease_when_the_clock_is_set_back(nodes: Nodes, seconds: float) -> None:
    grant = nodes.granted(nodes.of(RUN))
    nodes.clock.step(5.0)
    nodes.clock.step(seconds)

    said = [nodes.claim(nodes.of(RUN), node="other", nonce="b"), nodes.claim(nodes.of(RUN)), nodes.renew(grant)]
    nodes.clock.step(seconds)
    nodes.clock.step(-2 * seconds)  # before the fire time no gate opens
    said += [nodes.gate(grant), nodes.gate(grant), nodes.commit(grant)]
    nodes.clock.step(seconds)
    said += [nodes.gate(grant), nodes.claim(nodes.of(RUN), node="other", nonce="b")]

    assert all(0.0 <= answer.left_s <= LEASE_S for answer in said), said
    assert all(0.0 <= row.left_s <= LEASE_S for row in first_page(nodes).runs)


@pytest.mark.parametrize("started", [False, True])
def test_a_clock_that_was_ahead_for_a_moment_does_not_hold_a_dead_nodes_attempt(nodes: Nodes, started: bool) -> None:
    of = nodes.of(RUN, fire_at=nodes.clock.wall)
    nodes.ask(Register(of=of))
    nodes.clock.step(1000.0)
    grant = nodes.granted(of)
    if started:
        nodes.gate(grant)
    nodes.clock.step(-1000.0)
    row = nodes.ledger.run(RUN)
    assert row is not None

    short = nodes.claim(of, node="other", nonce="b", watched=watched_of(row.token, row.beat, LEASE_S))
    unwatched = nodes.claim(of, node="other", nonce="b")
    whole = nodes.claim(of, node="other", nonce="b", watched=watched_of(row.token, row.beat, LEASE_S * 1.03))

    assert [(one.word, one.left_s) for one in (short, unwatched)] == [("held", 0.0)] * 2
    assert whole.word == ("lost" if started else "granted")


@pytest.mark.parametrize("attempt", [0, 1])
def test_what_nobody_asked_to_wait_does_not_wait_for_a_time_that_a_clock_which_was_ahead_wrote(
    nodes: Nodes, attempt: int
) -> None:
    of = nodes.of(RUN, attempts=2, delay_s=50.0)
    nodes.clock.step(1000.0)
    nodes.ask(Register(of=of))
    if attempt:
        nodes.report(nodes.started(of), "failure", 1)
    nodes.clock.step(-1000.0)

    seen = nodes.opened().runs
    passed_on = nodes.claim(of, attempt - 1) if attempt else None
    granted, grant = nodes.claim(of, attempt), nodes.granted(of, attempt)

    assert [row.due_in_s for row in seen] == [0.0]
    assert passed_on is None or (passed_on.word, passed_on.in_s) == ("lost", 0.0)
    assert (granted.word, granted.in_s, nodes.gate(grant).word) == ("granted", 0.0, "ok")


def test_a_pause_is_waited_for_as_far_as_it_goes_also_by_a_clock_that_was_set_back_a_little(nodes: Nodes) -> None:
    of = nodes.of(RUN, attempts=2, delay_s=50.0)
    nodes.report(nodes.started(of), "failure", 1)

    assert nodes.claim(of, 1).in_s == pytest.approx(50.0 - CLAIM_AHEAD_S)
    nodes.clock.step(10.0)
    assert nodes.claim(of, 1).in_s == pytest.approx(40.0 - CLAIM_AHEAD_S)
    nodes.clock.step(-5.0)
    assert nodes.claim(of, 1).in_s == pytest.approx(45.0 - CLAIM_AHEAD_S)


def test_a_retry_waits_for_its_fire_time_whatever_the_clock_did(nodes: Nodes) -> None:
    of = nodes.of("sales@2025-01-29T08:00:04Z", fire_at=EPOCH + 4.0, attempts=2, delay_s=50.0)
    nodes.opened("sales")  # the ledger knows the job from now on
    nodes.clock.step(1000.0)
    nodes.report(nodes.started(of), "failure", 1)
    nodes.clock.step(-1000.0)

    granted, grant = nodes.claim(of, 1), nodes.granted(of, 1)

    assert (granted.word, granted.in_s, nodes.gate(grant).word) == ("granted", 4.0, "early")
    nodes.clock.step(4.0)
    assert nodes.gate(grant).word == "ok"


# ---- settling


@pytest.mark.parametrize("op", ["settle", "claim"])
def test_who_ends_an_attempt_is_told_of_which_definition_and_policy_it_was(nodes: Nodes, op: str) -> None:
    """All witnesses tell this to a ledger that lost writes. By then the job's file may have changed."""
    had = nodes.of(RUN, digest="d1", overlap="allow")
    nodes.started(had)
    watched, has = nodes.lapse(RUN), nodes.of(RUN, digest="d2", overlap="queue")

    settle = Settle(run=RUN, attempt=AttemptNumber(0), watched=watched)
    answer = nodes.ask(settle) if op == "settle" else nodes.claim(has, nonce="b", watched=watched)

    assert answer.word == "lost"
    assert answer.ended is not None
    ended = answer.ended
    assert (ended.digest, ended.policy, ended.lease_s) == ("d1", had.policy.pack(), LEASE_S)


def test_a_row_is_overdue_by_its_own_policy_and_only_then_settled_as_missed(nodes: Nodes) -> None:
    nodes.ask(Register(of=nodes.of(RUN, start_within_s=100.0)))
    nodes.clock.step(99.0)
    assert [row.overdue for row in first_page(nodes).runs] == [False]
    assert nodes.ask(Settle(run=RUN, attempt=AttemptNumber(0))).word == "held"
    nodes.clock.step(2.0)
    assert [row.overdue for row in first_page(nodes).runs] == [True]

    answer = nodes.ask(Settle(run=RUN, attempt=AttemptNumber(0)))

    why = "no node could launch it within 100 s of its time (101 s late)"
    assert answer.ended is not None
    assert (answer.word, answer.state, answer.ended.reason) == ("finished", "missed", why)
    assert (answer.ended.attempt, answer.ended.token, answer.ended.nonce, answer.ended.node) == (0, 0, "", "")
    assert (nodes.state(RUN), nodes.reason(RUN)) == ("missed", why)
    again = nodes.ask(Settle(run=RUN, attempt=AttemptNumber(0)))
    assert (again.word, again.state, again.ended) == ("finished", "missed", None)
    assert nodes.ask(Settle(run="gone#2", attempt=AttemptNumber(0))).state == "settled"


def test_a_run_that_waits_for_its_retry_is_settled_too_and_counts_from_the_retry(nodes: Nodes) -> None:
    grant = nodes.started(nodes.of(RUN, start_within_s=100.0, attempts=2, delay_s=50.0))
    nodes.report(grant, "failure", 1)
    nodes.clock.step(149.0)
    assert nodes.ask(Settle(run=RUN, attempt=AttemptNumber(1))).word == "held"
    nodes.clock.step(2.0)
    assert (
        nodes.ask(Settle(run=RUN, attempt=AttemptNumber(0))).word == "held"
    )  # the attempt is over: its end was seen before
    assert nodes.ask(Settle(run=RUN, attempt=AttemptNumber(1))).state == "missed"


def test_what_somebody_holds_is_not_settled(nodes: Nodes) -> None:
    nodes.started(nodes.of(RUN, start_within_s=10.0))
    nodes.clock.step(20.0)
    row = nodes.ledger.run(RUN)
    assert row is not None

    for watched in (None, watched_of(row.token, row.beat, LEASE_S * 10)):
        assert nodes.ask(Settle(run=RUN, attempt=AttemptNumber(0), watched=watched)).word == "held"
    nodes.clock.step(LEASE_S)
    for watched in (
        None,
        watched_of(row.token + 1, row.beat, LEASE_S * 10),
        watched_of(row.token, row.beat, LEASE_S * 1.01),
    ):
        assert nodes.ask(Settle(run=RUN, attempt=AttemptNumber(0), watched=watched)).word == "held"

    assert nodes.state(RUN) == "started"


@pytest.mark.parametrize(("on_lost", "word", "state"), [("relaunch", "lost", "retry"), ("hold", "held", "unknown")])
def test_a_lapsed_attempt_goes_by_the_lost_rule_and_nothing_is_granted(
    nodes: Nodes, on_lost: str, word: str, state: str
) -> None:
    nodes.started(nodes.of(RUN, on_lost=on_lost))
    watched = nodes.lapse(RUN)

    answer = nodes.ask(Settle(run=RUN, attempt=AttemptNumber(0), watched=watched))

    assert (answer.word, nodes.state(RUN)) == (word, state)
    assert answer.token == 0


@pytest.mark.parametrize(("start_within_s", "state"), [(10.0, "missed"), (3600.0, "received")])
def test_a_grant_that_lapsed_before_its_launch_is_missed_once_it_is_too_late(
    nodes: Nodes, start_within_s: float, state: str
) -> None:
    grant = nodes.granted(nodes.of(RUN, start_within_s=start_within_s))
    watched = nodes.lapse(RUN)

    nodes.ask(Settle(run=RUN, attempt=AttemptNumber(0), watched=watched))

    assert nodes.state(RUN) == state
    assert nodes.gate(grant).word == "stale"


def test_a_run_whose_parents_were_absent_is_never_granted_and_ends_with_their_names(nodes: Nodes) -> None:
    by = ABSENT + "sales (failure), rates"
    for run in ("a#1", "b#1"):
        assert nodes.ask(Register(of=nodes.of(run, by=by, start_within_s=0.0))).word == "ok"
    nodes.clock.step(0.001)

    claimed = nodes.claim(nodes.of("a#1", start_within_s=3600.0))
    settled = nodes.ask(Settle(run="b#1", attempt=AttemptNumber(0)))
    assert (claimed.word, claimed.state, settled.word, settled.state) == ("finished", "missed", "finished", "missed")
    assert nodes.reason("a#1") == nodes.reason("b#1") == by
