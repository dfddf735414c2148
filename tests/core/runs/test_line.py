"""The runs that wait for slots: only the first of them asks every second."""

from __future__ import annotations

from collections import Counter
from unittest import mock

from msgspec import structs
from support.small_cluster import SETTINGS, Lone, asked_for, job, open_run

from coordd.core.jobs.job import Concurrency
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.limits.rule import LIMIT_RETRY_S
from coordd.core.ledger.requests import Claim
from coordd.core.ledger.words import FINISHED, LIMITED, OK, PENDING, RECEIVED, SUCCESS, Token
from coordd.core.runs.pursued import BACKOFF_MAX_S, Line
from coordd.core.runs.waiting.look import BEHIND_S, FIRST
from coordd.core.wire.events import TaskReceived, TaskRejected

FULL = Answer(LIMITED, by="pool heavy: 4 of 4 run", in_s=LIMIT_RETRY_S)
FULL_JOB = Answer(LIMITED, by="concurrency: 1 of 1 run", in_s=LIMIT_RETRY_S)
RUNS = 12


def waiting(priorities: dict[str, int] | None = None) -> Lone:
    """A node with a dozen runs, each of a job of its own, that all wait for one pool."""
    names = [f"job{number:02}" for number in range(RUNS)]
    jobs = [job(name=name, pool="heavy", priority=(priorities or {}).get(name, 0)) for name in names]
    lone = Lone(*jobs, settings=structs.replace(SETTINGS, budget_client=100)).ready()
    for name in names:
        lone.do(lone.node.trigger, asked_for(f"{name}#1", lone.node.ctx.jobs[name]), 1)
        lone.answer("register", Answer(OK, state=PENDING))
    asked_in(lone, 3 * BACKOFF_MAX_S)  # until the others ask seldom
    return lone


def asked_in(lone: Lone, seconds: float, full: Answer = FULL) -> Counter[str]:
    """How often each run was asked for in that time. Every answer is that the slots are taken."""
    asked: Counter[str] = Counter()
    for _ in range(round(seconds / 0.25)):
        lone.wait(0.25)
        while lone.questions("claim"):
            asked[lone.waiting(Claim)[0].of.run] += 1
            lone.answer("claim", full)
    return asked


def test_the_first_asks_every_second_and_the_others_wait_for_its_answer() -> None:
    asked = asked_in(waiting(), 9.0)

    assert set(asked) == {"job00#1"}
    assert asked["job00#1"] > 4


def test_a_higher_priority_is_the_first() -> None:
    asked = asked_in(waiting({"job11": 5}), 9.0)

    assert set(asked) == {"job11#1"}


def test_when_the_first_is_over_the_next_comes_up() -> None:
    lone = waiting()
    while not lone.questions("claim"):
        lone.wait(0.05)
    lone.answer("claim", Answer(FINISHED, state=SUCCESS))

    asked = asked_in(lone, 6.0)

    assert asked["job01#1"] > 3
    assert set(asked) == {"job01#1"}


def test_the_end_of_a_run_in_the_pool_wakes_the_first() -> None:
    lone = waiting()
    asked_in(lone, 0.25)

    lone.do(lone.node.pursuits.run_ended, "job11")
    lone.wait(0.1)

    assert [claim.of.run for claim in lone.waiting(Claim)] == ["job00#1"]


def test_the_line_is_looked_at_once_for_all_that_leave_it_or_end_at_one_instant() -> None:
    lone = waiting()
    with mock.patch.object(Line, "_first", autospec=True, side_effect=Line._first) as looks:
        for pursuit in list(lone.node.pursuits.pursuits.values())[:-1]:
            lone.do(lone.node.pursuits._over, pursuit, SUCCESS)
            run = pursuit.action.run
            told = TaskRejected(uuid=run, name=pursuit.action.job, run=run, attempt=0, token=1, node="b.1", fire_at=0.0)
            lone.hear("b.1", told)
        assert looks.call_count == 0
        lone.wait(0.0)
    assert looks.call_count == 1 + (RUNS - 1), "of the pool once, and once for each job of which a run has ended"
    lone.wait(0.1)
    assert [claim.of.run for claim in lone.waiting(Claim)] == ["job11#1"]


def one_at_a_time(concurrency: Concurrency) -> Lone:
    """A node with a dozen runs of one job, and a slot of the job that another run has."""
    lone = Lone(job(overlap="allow", concurrency=concurrency), settings=structs.replace(SETTINGS, budget_client=100))
    lone.ready()
    for number in range(RUNS):
        lone.do(lone.node.trigger, asked_for(f"sales#{number:02}", lone.node.ctx.jobs["sales"]), 1)
        lone.answer("register", Answer(OK, state=PENDING))
    return lone


def test_behind_the_first_of_a_jobs_line_the_others_ask_once_a_minute() -> None:
    lone = one_at_a_time(Concurrency(1))
    asked_in(lone, BEHIND_S, FULL_JOB)  # until each has asked behind the first

    asked = asked_in(lone, BEHIND_S / 2, FULL_JOB)

    first = [f"sales#{number:02}" for number in range(FIRST)]
    assert all(asked[run] >= BEHIND_S / 2 for run in first)
    assert all(count <= 1 for run, count in asked.items() if run not in first)


def test_a_run_with_slots_of_its_own_asks_as_often_as_before() -> None:
    lone = one_at_a_time(Concurrency(1, per="{region}"))
    asked_in(lone, 3 * BACKOFF_MAX_S, FULL_JOB)

    asked = asked_in(lone, 1.5 * BACKOFF_MAX_S, FULL_JOB)

    assert len(asked) == RUNS


def test_a_run_that_waits_for_a_pool_asks_as_often_whatever_its_concurrency() -> None:
    lone = one_at_a_time(Concurrency(5))
    asked_in(lone, 1.0)
    last = lone.node.pursuits.pursuits[f"sales#{RUNS - 1:02}"]

    lone.do(lone.node.pursuits._limited, last, FULL)

    assert (last.slots, last.at <= lone.now.mono + BACKOFF_MAX_S) == ("pool heavy", True)


def test_when_the_first_of_a_jobs_line_leaves_the_next_one_asks_at_once() -> None:
    lone = one_at_a_time(Concurrency(1))
    asked_in(lone, BEHIND_S, FULL_JOB)

    for number in range(FIRST):
        lone.do(lone.node.pursuits._over, lone.node.pursuits.pursuits[f"sales#{number:02}"], SUCCESS)
    lone.wait(0.0)
    asked = asked_in(lone, 1.0, FULL_JOB)

    assert set(asked) == {f"sales#{number:02}" for number in range(FIRST, 2 * FIRST)}


def test_a_run_behind_a_full_line_asks_nothing_at_first() -> None:
    lone = one_at_a_time(Concurrency(1))
    asked_in(lone, 1.0, FULL_JOB)

    lone.do(lone.node.trigger, asked_for("sales#99", lone.node.ctx.jobs["sales"]), 1)
    lone.answer("register", Answer(OK, state=PENDING))
    asked = asked_in(lone, BACKOFF_MAX_S, FULL_JOB)

    assert "sales#99" not in asked
    assert lone.node.pursuits.pursuits["sales#99"].why == "limited: concurrency: sales#00 goes first"


def test_when_the_first_of_a_jobs_line_are_with_another_node_the_next_sweep_lets_one_ask() -> None:
    lone = one_at_a_time(Concurrency(1))
    asked_in(lone, 1.0, FULL_JOB)
    rows = [open_run(f"sales#{number:02}", RECEIVED, token=Token(7), node="b.1") for number in range(FIRST)]
    rows += [open_run(f"sales#{number:02}") for number in range(FIRST, RUNS)]
    for row in rows[:FIRST]:
        lone.hear("b.1", TaskReceived(uuid="u", name="sales", run=row.run, attempt=0, token=7, node="b.1", fire_at=0.0))
    lone.wait(1.0)
    assert lone.waiting(Claim) == []

    lone.sweep(*rows)
    lone.wait(0.5)

    assert [claim.of.run for claim in lone.waiting(Claim)] == [rows[FIRST].run]
