"""The definition of a job that counts, on each kind of ledger."""

from __future__ import annotations

import pytest
from support.ledger_calls import EPOCH, LEASE_S, Nodes

from coordd.core.groups.expand import member
from coordd.core.jobs.job import scheduled_run
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.backfill.plan import Plan
from coordd.core.ledger.open_answer import Current, OpenAnswer
from coordd.core.ledger.requests import Activate, Claim, Fill, ListOpen, PlanBackfill, Register, Revoke, Settled
from coordd.core.ledger.words import AttemptNumber

HOUR_S = 3600.0
MINUTE_S = 60.0


@pytest.fixture(autouse=True)
def known(nodes: Nodes) -> None:
    """The ledger learns of the job now."""
    nodes.ledger.ask(ListOpen(jobs=("sales",)))


def activate(
    nodes: Nodes, digest: str, schedule: str = "s1", how: str = "changed", sequence: int = 0, before: str = ""
) -> Answer:
    return nodes.ask(
        Activate(
            job="sales", digest=digest, schedule=schedule, how=how, by="edge-1.10", sequence=sequence, before=before
        )
    )


def restore(nodes: Nodes, digest: str, sequence: int, counts_from: float = EPOCH, schedule: str = "s1") -> Answer:
    """The node has been told that this definition counts under that number, and from then."""
    return nodes.ask(
        Activate(
            job="sales",
            digest=digest,
            schedule=schedule,
            how="restored",
            by="edge",
            sequence=sequence,
            counts_from=counts_from,
        )
    )


def told(answer: Answer) -> tuple[str, int]:
    return answer.word, answer.token


def counted(nodes: Nodes) -> Current:
    answer = nodes.ledger.ask(ListOpen(jobs=("sales",)))
    assert isinstance(answer, OpenAnswer)
    return answer.current["sales"]


def claim(nodes: Nodes, fire_at: float, digest: str, due: float = 0.0) -> str:
    of = nodes.of(scheduled_run("sales", fire_at), fire_at=fire_at, digest=digest, due=due, overlap="allow")
    return nodes.ask(Claim(of=of, attempt=AttemptNumber(0), nonce="n1", node="edge-1.10", lease_s=LEASE_S)).word


@pytest.mark.parametrize("schedule", ["s2", "s3"])
def test_a_node_that_was_not_told_from_when_its_definition_counts_brings_no_settled_fire_time_back(
    nodes: Nodes, schedule: str
) -> None:
    """Its activation was forgotten before a sweep told the node that instant. (Seed 17005309 of the simulator.)"""
    activate(nodes, "d1", "s1", "new")
    nodes.clock.step(HOUR_S)
    activate(nodes, "d2", "s2", sequence=1)
    since = counted(nodes).counts_from
    decided = [(one.after, one.upto, one.decision) for one in nodes.ledger.fires("sales").stretches]
    assert decided

    assert restore(nodes, "d3", 3, counts_from=0.0, schedule=schedule).word == "ok"
    assert (counted(nodes).digest, counted(nodes).counts_from) == ("d3", since)
    assert [(one.after, one.upto, one.decision) for one in nodes.ledger.fires("sales").stretches] == decided
    assert claim(nodes, since - MINUTE_S, "d3") == "finished"
    assert claim(nodes, since + MINUTE_S, "d3") == "early"


def test_a_job_that_ran_and_is_moved_to_a_time_that_is_past_does_not_run_again(nodes: Nodes) -> None:
    """The job ran at 01:15. At 02:40 its time is moved to 02:15."""
    activate(nodes, "at 01:15", "s1", "new")
    nodes.clock.step(75 * MINUTE_S)
    ran_at = nodes.clock.wall
    assert claim(nodes, ran_at, "at 01:15") == "granted"
    nodes.clock.step(85 * MINUTE_S)

    assert activate(nodes, "at 02:15", "s2").word == "ok"

    assert claim(nodes, ran_at + HOUR_S, "at 02:15") == "finished"
    assert claim(nodes, ran_at + 25 * HOUR_S - 85 * MINUTE_S, "at 02:15") in ("early", "granted", "limited")


def test_a_run_that_was_forgotten_and_is_due_later_by_a_new_jitter_is_settled_for_people_too(nodes: Nodes) -> None:
    """A run of 01:00 is forgotten. At 01:10 its job gets a jitter, by which the run would have been due at 01:07."""
    activate(nodes, "plain", "s1", "new")
    nodes.clock.step(HOUR_S)
    ran_at, run = nodes.clock.wall, scheduled_run("sales", nodes.clock.wall)
    of = nodes.of(run, fire_at=ran_at, digest="plain")
    nodes.report(nodes.started(of))
    nodes.clock.step(10 * MINUTE_S)
    assert nodes.ledger.prune(MINUTE_S) == 1
    activate(nodes, "with jitter", "s2")

    answer = nodes.ask(Revoke(run=run, by="ann", due=ran_at + 7 * MINUTE_S))

    assert (answer.word, answer.state) == ("finished", "settled")


def test_a_jitter_that_is_added_after_a_run_does_not_run_it_again(nodes: Nodes) -> None:
    """The run of 01:00 has run. At 01:05 its job gets a jitter, by which the run would be due at 01:07."""
    activate(nodes, "plain", "s1", "new")
    nodes.clock.step(HOUR_S)
    ran_at = nodes.clock.wall
    assert claim(nodes, ran_at, "plain") == "granted"
    nodes.clock.step(5 * MINUTE_S)

    activate(nodes, "with jitter", "s2")

    nodes.clock.step(2 * MINUTE_S)
    assert claim(nodes, ran_at, "with jitter", due=ran_at + 7 * MINUTE_S) in ("held", "differs")


def test_only_the_definition_that_counts_opens_a_fire_time(nodes: Nodes) -> None:
    activate(nodes, "d1", how="new")
    activate(nodes, "d2")
    nodes.clock.step(MINUTE_S)

    assert claim(nodes, nodes.clock.wall, "d1") == "differs"
    assert claim(nodes, nodes.clock.wall, "d2") == "granted"


def test_an_edit_that_does_not_touch_the_schedule_loses_nothing(nodes: Nodes) -> None:
    activate(nodes, "d1", "s1", "new")
    nodes.clock.step(MINUTE_S)
    due = nodes.clock.wall
    nodes.clock.step(MINUTE_S)

    activate(nodes, "d2", "s1")

    assert claim(nodes, due, "d2") == "granted"


def test_a_definition_that_returns_counts_from_its_return(nodes: Nodes) -> None:
    activate(nodes, "d1", "s1", "new")
    activate(nodes, "d2", "s2")
    nodes.clock.step(MINUTE_S)
    before = nodes.clock.wall
    nodes.clock.step(MINUTE_S)

    assert activate(nodes, "d1", "s1").word == "ok"

    assert claim(nodes, before, "d1") == "finished"
    nodes.clock.step(MINUTE_S)
    assert claim(nodes, nodes.clock.wall, "d1") == "granted"


def test_a_node_that_never_had_one_brings_back_no_definition_of_before(nodes: Nodes) -> None:
    activate(nodes, "d1", how="new")
    activate(nodes, "d2")

    assert activate(nodes, "d1", how="new").word == "differs"
    assert activate(nodes, "d1", how="person").word == "ok"


def test_a_ledger_that_forgot_all_definitions_is_told_the_older_ones(nodes: Nodes) -> None:
    """The ledger was emptied while people edited the file. A node that still has the old file comes last."""
    assert activate(nodes, "d5", how="changed", sequence=2, before="d1 d2 d4").token == 3

    assert activate(nodes, "d2", how="returned", sequence=2).word == "differs"
    for older in ("d1", "d2", "d4"):
        assert activate(nodes, older, how="new").word == "differs"
    assert activate(nodes, "d3", how="new").token == 4


def test_a_job_that_was_edited_before_the_ledger_knew_it_begins_with_its_newest_definition(nodes: Nodes) -> None:
    """The file was edited while no node reached the ledger. One node has not read the new one yet."""
    assert activate(nodes, "d2", how="new", before="d1").token == 1

    assert activate(nodes, "d1", how="new").word == "differs"
    assert activate(nodes, "d3", how="changed", sequence=1, before="d1 d2").token == 2
    assert activate(nodes, "d2", how="new").word == "differs"


def test_of_a_definition_that_the_ledger_forgot_the_latest_counts(nodes: Nodes) -> None:
    activate(nodes, "d1", how="new")

    assert restore(nodes, "d5", 5).word == "ok"
    assert restore(nodes, "d3", 3).word == "differs"
    assert counted(nodes) == Current(sequence=5, digest="d5", counts_from=EPOCH)


def test_a_return_that_the_ledger_forgot_counts_again_from_its_instant(nodes: Nodes) -> None:
    """The job was away for an hour. The ledger knows nothing of it: it has the definition from before."""
    activate(nodes, "d1", how="new")
    back_at = EPOCH + HOUR_S
    nodes.clock.step(HOUR_S + MINUTE_S)

    assert told(restore(nodes, "d1", 3, back_at)) == ("ok", 3)

    assert counted(nodes) == Current(sequence=3, digest="d1", counts_from=back_at)
    assert claim(nodes, back_at - MINUTE_S, "d1") == "finished"
    assert told(restore(nodes, "d1", 2, back_at + MINUTE_S)) == ("ok", 3)  # known: nothing changes
    assert told(restore(nodes, "d1", 4, back_at)) == ("ok", 3)
    assert told(restore(nodes, "d1", 4, EPOCH)) == ("ok", 3)
    assert counted(nodes) == Current(sequence=3, digest="d1", counts_from=back_at)
    assert claim(nodes, back_at + MINUTE_S, "d1") == "granted"


def test_a_definition_that_was_activated_while_the_clock_was_ahead_counts_from_now_once_that_is_right(
    nodes: Nodes,
) -> None:
    activate(nodes, "d1", "s1", "new")
    nodes.clock.step(HOUR_S)
    activate(nodes, "d2", "s2")
    nodes.clock.step(-HOUR_S)
    nodes.clock.step(MINUTE_S)

    answer = nodes.ledger.ask(ListOpen(jobs=("sales",)))
    assert isinstance(answer, OpenAnswer)

    assert answer.current["sales"].counts_from == nodes.clock.wall
    assert claim(nodes, nodes.clock.wall + 1.0, "d2") == "granted"  # a run is opened a second ahead
    assert claim(nodes, nodes.clock.wall - 1.0, "d2") == "finished"


def test_what_is_claimed_late_after_such_a_clock_is_not_passed_over(nodes: Nodes) -> None:
    activate(nodes, "d1", "s1", "new")
    nodes.clock.step(HOUR_S)
    activate(nodes, "d2", "s2")
    nodes.clock.step(-HOUR_S)
    nodes.clock.step(MINUTE_S)
    nodes.ledger.ask(ListOpen(jobs=("sales",)))
    due = nodes.clock.wall + 1.0

    nodes.clock.step(MINUTE_S)
    nodes.ledger.ask(ListOpen(jobs=("sales",)))

    assert claim(nodes, due, "d2") == "granted"


@pytest.mark.parametrize("op", ["claim", "register"])
@pytest.mark.parametrize("edited", ["", "before", "meanwhile"])
def test_a_clock_that_was_set_back_for_a_while_opens_nothing_of_the_time_before_the_definition(
    nodes: Nodes, edited: str, op: str
) -> None:
    """At 02:40 the job is moved from 01:15 to 02:15. At 02:45 the ledger's clock says 01:45 for a minute."""
    activate(nodes, "at 01:15", "s1", "new")
    nodes.clock.step(100 * MINUTE_S)
    activate(nodes, "at 02:15", "s2")
    past, digest = nodes.clock.wall - 25 * MINUTE_S, "at 02:15"
    nodes.clock.step(5 * MINUTE_S)
    if edited == "before":
        activate(nodes, digest := "of another program", "s2")
    nodes.clock.step(-HOUR_S)
    nodes.opened("sales")
    if edited == "meanwhile":
        activate(nodes, digest := "of another program", "s2")
    nodes.clock.step(MINUTE_S)
    assert claim(nodes, nodes.clock.wall + 1.0, digest) == "granted"  # meanwhile the ledger works for all others

    nodes.clock.step(HOUR_S)
    nodes.opened("sales")

    of = nodes.of(scheduled_run("sales", past), fire_at=past, digest=digest, overlap="allow")
    answer = nodes.ask(Register(of=of)) if op == "register" else nodes.claim(of)
    assert (answer.word, answer.state) == ("finished", "settled")
    assert claim(nodes, nodes.clock.wall - 1.0, digest) == "granted"


def test_what_is_opened_while_such_a_clock_passes_the_time_that_it_had_said_is_not_passed_over(nodes: Nodes) -> None:
    activate(nodes, "d1", "s1", "new")
    nodes.clock.step(HOUR_S)
    activate(nodes, "d2", "s2")
    said = nodes.clock.wall
    nodes.clock.step(-HOUR_S)
    nodes.opened("sales")
    nodes.clock.step(HOUR_S + 1.0)

    assert claim(nodes, said - 8.0, "d2") == "granted"
    assert claim(nodes, said - 10.0, "d2") == "finished"


@pytest.mark.parametrize("how", ["new", "changed", "returned"])
def test_a_schedule_that_a_known_job_is_given_opens_nothing_of_the_time_before(nodes: Nodes, how: str) -> None:
    """Until now the job had no schedule, and was only triggered."""
    nodes.clock.step(HOUR_S)
    before = nodes.clock.wall
    nodes.clock.step(MINUTE_S)

    activate(nodes, "d1", "s1", how)

    assert claim(nodes, before, "d1") == "finished"
    assert claim(nodes, nodes.clock.wall + 1.0, "d1") == "granted"


def test_a_job_that_returns_opens_nothing_of_the_time_that_it_was_away(nodes: Nodes) -> None:
    first = activate(nodes, "d1", "s1", "new")
    nodes.clock.step(HOUR_S)
    away = nodes.clock.wall
    nodes.clock.step(MINUTE_S)

    again = activate(nodes, "d1", "s1", "returned", first.token)

    assert again.token == first.token + 1
    assert claim(nodes, away, "d1") == "finished"
    assert claim(nodes, nodes.clock.wall + 1.0, "d1") == "granted"


def test_the_next_node_to_which_it_returns_does_not_begin_it_once_more(nodes: Nodes) -> None:
    first = activate(nodes, "d1", "s1", "new")
    nodes.clock.step(HOUR_S)
    again = activate(nodes, "d1", "s1", "returned", first.token)
    nodes.clock.step(MINUTE_S)
    due = nodes.clock.wall
    nodes.clock.step(MINUTE_S)

    assert activate(nodes, "d1", "s1", "returned", first.token).token == again.token
    assert claim(nodes, due, "d1") == "granted"


def test_a_job_that_returns_with_other_arguments_counts_from_its_return(nodes: Nodes) -> None:
    first = activate(nodes, "d1", "s1", "new")
    nodes.clock.step(HOUR_S)
    away = nodes.clock.wall
    nodes.clock.step(MINUTE_S)

    activate(nodes, "d2", "s1", "returned", first.token)

    assert claim(nodes, away, "d2") == "finished"


def test_a_job_that_returns_behind_the_others_changes_nothing(nodes: Nodes) -> None:
    first = activate(nodes, "d1", "s1", "new")
    activate(nodes, "d2", "s2")

    assert activate(nodes, "d1", "s1", "returned", first.token).word == "differs"


def test_a_job_that_was_first_heard_of_while_the_clock_was_ahead_begins_now_once_that_is_right(nodes: Nodes) -> None:
    nodes.clock.step(-HOUR_S)
    nodes.clock.step(MINUTE_S)
    nodes.ledger.ask(ListOpen(jobs=("sales",)))
    activate(nodes, "d1", "s1", "new")
    due = nodes.clock.wall + 1.0

    nodes.clock.step(MINUTE_S)
    answer = nodes.ledger.ask(ListOpen(jobs=("sales",)))
    assert isinstance(answer, OpenAnswer)

    assert answer.jobs["sales"].horizon < due
    assert claim(nodes, due, "d1") == "granted"


@pytest.mark.parametrize("swept", [True, False])
def test_a_job_without_a_schedule_that_was_granted_runs_by_such_a_clock_gets_one_that_begins_now(
    nodes: Nodes, swept: bool
) -> None:
    """Its horizon was ahead of the clock, nothing moved it back, and the new schedule opened nothing up to there."""
    nodes.clock.step(-HOUR_S)
    asked = Claim(of=nodes.of("sales#1"), attempt=AttemptNumber(0), nonce="n1", node="edge-1.10", lease_s=LEASE_S)
    assert nodes.ask(asked).word == "granted"
    if swept:
        nodes.ledger.ask(ListOpen(jobs=("sales",)))
    assert activate(nodes, "d1", "s1", "new").word == "ok"

    answer = nodes.ledger.ask(ListOpen(jobs=("sales",)))
    assert isinstance(answer, OpenAnswer)
    assert answer.jobs["sales"].horizon <= nodes.clock.wall
    nodes.clock.step(MINUTE_S)
    assert claim(nodes, nodes.clock.wall, "d1") == "granted"


def test_what_such_a_job_was_granted_while_the_clock_was_ahead_stays_settled(nodes: Nodes) -> None:
    activate(nodes, "d1", "s1", "new")
    nodes.clock.step(HOUR_S)
    of = nodes.of(scheduled_run("sales", nodes.clock.wall), fire_at=nodes.clock.wall, digest="d1", overlap="allow")
    assert (
        nodes.ask(
            Claim(
                of=of,
                attempt=AttemptNumber(0),
                nonce="n1",
                node="edge-1.10",
                lease_s=LEASE_S,
                watched=None,
                settled=Settled(nodes.clock.wall - 1.0),
            )
        ).word
        == "granted"
    )
    coalesced = nodes.clock.wall - 1.0
    nodes.clock.step(-HOUR_S)

    nodes.ledger.ask(ListOpen(jobs=("sales",)))

    assert claim(nodes, coalesced, "d1") == "finished"


@pytest.mark.parametrize("redo", ["none", "all"])
def test_what_ran_as_a_group_is_not_backfilled_as_one_run(nodes: Nodes, redo: str) -> None:
    """The job had `expand`, and its members have run. It has lost that since."""
    activate(nodes, "with expand", how="new")
    nodes.clock.step(HOUR_S)
    at, run = nodes.clock.wall, scheduled_run("sales", nodes.clock.wall)
    for number in range(2):
        nodes.report(nodes.started(nodes.of(member(run, number), fire_at=at, digest="with expand", overlap="allow")))
    nodes.clock.step(HOUR_S)
    activate(nodes, "as a whole", "s2")
    nodes.ask(PlanBackfill(job="sales", text=Plan("p1", at - HOUR_S, at + HOUR_S, redo=redo).text(), by="ann"))

    def fill(fire_at: float) -> str:
        of = nodes.of(scheduled_run("sales", fire_at), fire_at=fire_at, digest="as a whole")
        return nodes.ask(Fill(plan="p1", left=1, of=of)).word

    assert fill(at - MINUTE_S) == "ok"
    assert fill(at) == "exists"
