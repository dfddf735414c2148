"""Who goes first of those that wait for a pool or for the budget of a node."""

from __future__ import annotations

import random

import pytest
from msgspec import structs
from support.small_cluster import EPOCH, SETTINGS, Cluster, Lone, asked_for, job, open_run

from coordd.core.jobs.job import EXEC_DIGEST, Job, SparkSubmit
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.limits.rule import LIMIT_RETRY_S
from coordd.core.ledger.requests import Claim, Register
from coordd.core.ledger.words import EARLY, EXISTS, FINISHED, LIMITED, OK, PENDING, RECEIVED, SUCCESS
from coordd.core.members.membership import ALIVE, LOST, SUSPECT, Member
from coordd.core.runs.pursued import BACKOFF_MIN_S, HOOKS_HERE, Pursuit
from coordd.core.runs.waiting.look import YIELD_S, YIELD_TO_OTHERS_S
from coordd.core.wire.events import Action
from core.runs.claims import granted

FULL = Answer(LIMITED, by="pool heavy: 1 of 1 run", in_s=LIMIT_RETRY_S)
ROOMY = structs.replace(SETTINGS, budget_client=100)

# So many runs wait that comparing each with each would be seen.
MANY = 300

LOW, HIGH = job("low", pool="heavy"), job("high", pool="heavy", priority=5)


def trigger(lone: Lone, of: Job, ident: str = "1") -> None:
    lone.do(lone.node.trigger, asked_for(f"{of.name}#{ident}", of), int(ident))
    lone.answer("register", Answer(OK, state=PENDING))


def claims(lone: Lone) -> list[str]:
    return [claim.of.run for claim in lone.waiting(Claim)]


def grant(lone: Lone) -> None:
    """Grant the oldest open claim."""
    lone.answer("claim", granted(1))


def test_a_run_that_comes_later_does_not_pass_one_that_waits() -> None:
    lone = Lone(LOW, HIGH, settings=ROOMY).ready()
    trigger(lone, HIGH)
    lone.answer("claim", FULL)
    trigger(lone, LOW)
    assert claims(lone) == []
    lone.wait(LIMIT_RETRY_S + 0.1)
    assert claims(lone) == ["high#1"]
    assert "high#1 goes first" in lone.node.pursuits.pursuits["low#1"].why

    grant(lone)
    lone.wait(0.5)
    assert claims(lone) == ["low#1"], "there may be a second slot"


def test_a_higher_priority_that_comes_later_goes_first() -> None:
    lone = Lone(LOW, HIGH, settings=ROOMY).ready()
    trigger(lone, LOW)
    lone.answer("claim", FULL)
    trigger(lone, HIGH)
    assert claims(lone) == ["high#1"]
    lone.answer("claim", FULL)
    lone.wait(LIMIT_RETRY_S + 0.1)
    assert claims(lone) == ["high#1"]


def test_of_two_that_come_at_once_the_higher_is_asked_for_first() -> None:
    lone = Lone(LOW, HIGH, settings=ROOMY, peers=("b.1",)).ready()
    for of in (LOW, HIGH):
        trigger(lone, of)
    while not claims(lone):
        lone.wait(0.05)
    assert claims(lone) == ["high#1"]
    lone.wait(YIELD_S + 0.2)
    assert sorted(claims(lone)) == ["high#1", "low#1"], "an answer that is late holds nobody up for longer"


def test_the_ledger_says_which_of_two_triggered_runs_came_first() -> None:
    """Each node dates what it is asked for by its own clock; the row has the ledger's, for all nodes."""
    lone = Lone(LOW, settings=ROOMY).ready()
    trigger(lone, LOW, "1")
    lone.answer("claim", FULL)
    trigger(lone, LOW, "2")
    lone.sweep(open_run("low#1", of=LOW), open_run("low#2", of=LOW, wall=EPOCH - 5.0))
    lone.wait(LIMIT_RETRY_S + 0.1)
    assert claims(lone) == ["low#2"]


def test_a_scheduled_run_that_lets_another_go_first_has_a_row() -> None:
    ticks = job("ticks", pool="heavy", every_s=60.0)
    lone = Lone(ticks, HIGH, settings=ROOMY).ready()
    trigger(lone, HIGH)
    lone.answer("claim", FULL)
    lone.sweep(open_run("high#1", of=HIGH), last=EPOCH - 60.0)
    lone.forget()
    while not lone.requests(Register):
        while claims(lone):
            lone.answer("claim", FULL)
        lone.wait(0.5)
    assert [said.of.job for said in lone.requests(Register)] == ["ticks"]
    lone.answer("register", Answer(EXISTS, state=PENDING))
    lone.wait(3.0)
    assert claims(lone) == ["high#1"]


def peer(lone: Lone) -> Member:
    """The other node, which says nothing any more in these tests, and is not taken for lost yet."""
    member = next(iter(lone.node.ctx.membership.members.values()))
    member.state = SUSPECT
    return member


def beside_one_with_a_gpu(*jobs: Job) -> Lone:
    lone = Lone(*jobs, settings=ROOMY, peers=("b.1",)).ready()
    peer(lone).tags = ("gpu",)
    return lone


def test_a_run_that_only_others_can_take_goes_first_for_a_while() -> None:
    tagged = job("tagged", pool="heavy", priority=5, tags=("gpu",))
    lone = beside_one_with_a_gpu(LOW, tagged)
    lone.sweep(open_run("tagged#1", of=tagged))
    lone.wait(SETTINGS.election_timeout_s)
    trigger(lone, LOW)
    lone.wait(YIELD_TO_OTHERS_S - 0.5)
    assert claims(lone) == []
    lone.wait(1.0 + SETTINGS.election_timeout_s)
    assert claims(lone) == ["low#1"]

    grant(lone)
    trigger(lone, LOW, "2")
    lone.wait(SETTINGS.election_timeout_s)
    assert claims(lone) == ["low#2"], "the slot was free, and nobody took it for the other run"


@pytest.mark.parametrize("gone", [False, True])
def test_a_run_that_no_node_can_take_holds_nobody_up(gone: bool) -> None:
    tagged = job("tagged", pool="heavy", priority=5, tags=("gpu",))
    lone = beside_one_with_a_gpu(LOW, tagged)
    if gone:
        peer(lone).state = LOST
    else:
        peer(lone).tags = ("fast",)
    for number in range(3):  # each is new
        lone.sweep(open_run(f"tagged#{number}", of=tagged))
        lone.wait(SETTINGS.election_timeout_s)
    trigger(lone, LOW)
    lone.wait(2 * SETTINGS.election_timeout_s)
    assert claims(lone) == ["low#1"]


@pytest.mark.parametrize("alone", [True, False])
def test_a_run_whose_definition_this_node_lacks_waits_for_another_one_alone(alone: bool) -> None:
    """Another node may still have the earlier definition, by which the run was begun."""
    changed = job("changed", pool="heavy", priority=5, digest="d2")
    lone = beside_one_with_a_gpu(LOW, changed)
    peer(lone).tags = ()
    if alone:
        peer(lone).state = LOST
    lone.sweep(open_run("changed#1", of=structs.replace(changed, digest="d1")))
    lone.wait(SETTINGS.election_timeout_s)
    trigger(lone, LOW)
    lone.wait(2 * SETTINGS.election_timeout_s)

    assert claims(lone) == (["low#1"] if alone else [])


def test_a_run_that_waits_for_one_of_its_job_holds_nobody_up_although_that_one_goes_first() -> None:
    tagged = job("tagged", pool="heavy", priority=9, tags=("gpu",))
    lone = beside_one_with_a_gpu(LOW, HIGH, tagged)
    lone.sweep(open_run("tagged#1", of=tagged))
    lone.wait(SETTINGS.election_timeout_s)
    trigger(lone, HIGH)
    lone.wait(YIELD_TO_OTHERS_S + LIMIT_RETRY_S)
    assert claims(lone) == ["high#1"]
    peer(lone)
    lone.answer("claim", Answer(LIMITED, by="overlap with high#0", in_s=LIMIT_RETRY_S))
    lone.wait(LIMIT_RETRY_S + 0.1)
    assert "tagged#1 goes first" in lone.node.pursuits.pursuits["high#1"].why
    trigger(lone, LOW)
    lone.wait(SETTINGS.election_timeout_s)

    assert claims(lone) == ["low#1"], "nobody is left who can take the first, and the second waits for something else"


def test_many_that_only_others_can_take_hold_nobody_up_one_after_the_other() -> None:
    tagged = job("tagged", pool="heavy", priority=5, tags=("gpu",))
    lone = beside_one_with_a_gpu(LOW, tagged)
    lone.sweep(*[open_run(f"tagged#{number}", of=tagged) for number in range(5)])
    lone.wait(SETTINGS.election_timeout_s)
    trigger(lone, LOW)
    lone.wait(YIELD_TO_OTHERS_S + 0.5 + SETTINGS.election_timeout_s)
    grant(lone)
    trigger(lone, LOW, "2")
    lone.wait(SETTINGS.election_timeout_s)
    assert claims(lone) == ["low#2"], "none of them took the slot that was free"

    lone.sweep(open_run("tagged#9", of=tagged), *[open_run(f"tagged#{number}", of=tagged) for number in range(5)])
    lone.wait(SETTINGS.election_timeout_s)
    peer(lone)
    trigger(lone, LOW, "3")
    lone.wait(SETTINGS.election_timeout_s)
    assert claims(lone) == ["low#2"], "the new one goes first for a while"


def test_the_time_that_was_waited_for_others_does_not_count_for_a_run_that_this_node_asks_for() -> None:
    tagged = job("tagged", pool="heavy", priority=5, tags=("gpu",))
    lone = beside_one_with_a_gpu(LOW, HIGH, tagged)
    lone.sweep(open_run("tagged#1", of=tagged))
    lone.wait(SETTINGS.election_timeout_s)
    trigger(lone, LOW)
    lone.wait(YIELD_TO_OTHERS_S - 0.6)
    trigger(lone, HIGH)
    lone.wait(SETTINGS.election_timeout_s)
    assert claims(lone) == ["high#1"]
    for _ in range(4):
        if claims(lone):
            lone.answer("claim", FULL)
        lone.wait(BACKOFF_MIN_S)
        assert "low#1" not in claims(lone)
    assert "high#1 goes first" in lone.node.pursuits.pursuits["low#1"].why


@pytest.mark.parametrize(("at_s", "slots", "first"), [(0.2, "budget", True), (0.2, "", True), (300.0, "", False)])
def test_a_run_that_is_about_to_ask_goes_first_and_one_that_is_not_due_does_not(
    at_s: float, slots: str, first: bool
) -> None:
    """It waited for the budget of this node, which is free again; or the ledger has said that it is not due yet."""
    lone = Lone(LOW, HIGH, settings=ROOMY).ready()
    trigger(lone, HIGH)
    lone.answer("claim", Answer(EARLY, in_s=at_s))
    high = lone.node.pursuits.pursuits["high#1"]
    high.slots = slots
    trigger(lone, LOW)

    assert claims(lone) == ([] if first else ["low#1"])
    assert (high.phase, high.slots) == ("due", slots)


def before(lone: Lone, caller: Action) -> str:
    """The run that a caller of `coordd exec` lets go first."""
    return lone.node.pursuits.before_caller(caller, "heavy", lone.now)


def calls(ident: str, at: float, of: Job = LOW) -> Action:
    return Action(of.name, f"{of.name}#{ident}", fire_at=at, digest=f"{EXEC_DIGEST}1")


def test_a_caller_of_coordd_exec_does_not_pass_a_run_that_waits() -> None:
    lone = Lone(LOW, HIGH, settings=ROOMY).ready()
    trigger(lone, LOW)
    lone.answer("claim", FULL)
    assert before(lone, calls("later", EPOCH + 60.0)) == "low#1"
    assert before(lone, calls("earlier", EPOCH - 60.0)) == ""
    assert before(lone, calls("later", EPOCH + 60.0, HIGH)) == "", "a higher priority"
    lone.wait(LIMIT_RETRY_S + 0.1)
    grant(lone)
    assert before(lone, calls("later", EPOCH + 60.0)) == ""


def test_a_run_does_not_pass_a_caller_of_coordd_exec_that_waits() -> None:
    """Every node knows its place by its row. The nodes do not know whether the caller still lives."""
    lone = Lone(LOW, HIGH, settings=ROOMY).ready()
    row = open_run("low#call", of=structs.replace(LOW, digest=f"{EXEC_DIGEST}1"), fire_at=EPOCH - 60.0)
    lone.sweep(row)
    lone.wait(SETTINGS.election_timeout_s)
    assert before(lone, calls("call", EPOCH - 60.0)) == ""
    assert before(lone, calls("other", EPOCH)) == "low#call"
    trigger(lone, LOW)
    lone.wait(YIELD_TO_OTHERS_S - 0.5)
    assert claims(lone) == []
    lone.wait(1.0)
    assert claims(lone) == ["low#1"], "nobody waits for ever for a caller that may be gone"


def test_a_caller_of_coordd_exec_waits_for_a_bounded_time() -> None:
    tagged = job("tagged", pool="heavy", priority=5, tags=("gpu",))
    lone = beside_one_with_a_gpu(LOW, tagged)
    mine = structs.replace(LOW, digest=f"{EXEC_DIGEST}1")
    lone.sweep(open_run("tagged#1", of=tagged), open_run("low#call", of=mine))
    lone.wait(SETTINGS.election_timeout_s)
    assert before(lone, calls("call", EPOCH)) == "tagged#1"
    lone.wait(YIELD_TO_OTHERS_S + 0.1)
    assert before(lone, calls("call", EPOCH)) == ""
    lone.do(lone.node.pursuits.caller_granted, "low#call", "heavy")
    assert before(lone, calls("another", EPOCH + 60.0)) == "low#call", "the slot was free, and tagged#1 did not take it"


def test_runs_of_other_pools_and_without_a_pool_wait_for_nobody() -> None:
    plain, other = job("plain"), job("other", pool="small")
    lone = Lone(HIGH, plain, other, settings=ROOMY).ready()
    trigger(lone, HIGH)
    lone.answer("claim", FULL)
    for of in (plain, other):
        trigger(lone, of)
    assert sorted(claims(lone)) == ["other#1", "plain#1"]


def test_one_that_waits_for_something_else_holds_nobody_up() -> None:
    lone = Lone(LOW, HIGH, settings=ROOMY).ready()
    trigger(lone, HIGH)
    lone.answer("claim", Answer(LIMITED, by="concurrency: 1 of 1 run", in_s=LIMIT_RETRY_S))
    trigger(lone, LOW)
    assert claims(lone) == ["low#1"]


def test_a_grant_that_was_not_used_is_taken_over_whoever_waits_for_its_slot() -> None:
    """The slot is that run's: if it lets another go first, nobody gets the slot."""
    lone = Lone(LOW, HIGH, settings=ROOMY).ready()
    trigger(lone, HIGH)
    lone.answer("claim", FULL)
    held = open_run("low#1", state=RECEIVED, token=7, node="b.1", nonce="n", lease=8.0, left_s=1.0)
    lone.sweep(held)
    lone.forget()
    lone.wait(40.0)

    assert "low#1" in [claim.of.run for claim in lone.requests(Claim)]


def test_the_strategy_orders_runs_of_one_priority() -> None:
    names = ("one", "two", "three")
    jobs = [job(name, pool="heavy") for name in names]
    lone = Lone(*jobs, settings=ROOMY).ready()
    lone.node.pursuits.scored({"one": -30.0, "two": -10.0, "three": -20.0})
    for of in jobs:
        trigger(lone, of)
    order = []
    for _ in range(200):
        lone.wait(0.25)
        for run in claims(lone):
            order.append(run)
            lone.answer("claim", FULL if len(order) < 10 else granted(len(order)))
    assert order[-3:] == ["two#1", "three#1", "one#1"]


def test_the_budget_goes_to_the_first_that_waits_for_it() -> None:
    """A slot is free again because a claim came to nothing. A run that comes then does not take it."""
    runs, low, high = job("runs"), job("low"), job("high", priority=5)
    lone = Lone(runs, low, high, settings=structs.replace(SETTINGS, budget_client=1)).ready()
    trigger(lone, runs)
    trigger(lone, high)
    assert claims(lone) == ["runs#1"]
    lone.answer("claim", Answer(FINISHED, state=SUCCESS))
    trigger(lone, low)
    assert claims(lone) == ["high#1"]


def test_a_run_that_waited_for_a_slot_and_then_for_the_budget_still_goes_first() -> None:
    """Budget for both becomes free at once. Of two claims of one instant the second may reach the ledger first."""
    lone = Lone(LOW, HIGH, job("runs"), settings=structs.replace(SETTINGS, budget_client=1)).ready()
    trigger(lone, HIGH)
    lone.answer("claim", FULL)
    trigger(lone, job("runs"))
    grant(lone)
    trigger(lone, LOW)
    lone.wait(2.0)
    high = lone.node.pursuits.pursuits["high#1"]
    assert (high.phase, high.slots, claims(lone)) == ("waiting", "budget", [])

    lone.node.ctx.budget = 3
    lone.wait(SETTINGS.election_timeout_s)

    assert claims(lone) == ["high#1"]
    grant(lone)
    lone.wait(YIELD_S)
    assert claims(lone) == ["low#1"]


def test_a_run_that_let_another_go_first_lets_it_go_first_again_after_both_waited_for_the_budget() -> None:
    lone = Lone(LOW, HIGH, job("runs"), settings=structs.replace(SETTINGS, budget_client=3)).ready()
    trigger(lone, job("runs"))
    grant(lone)
    trigger(lone, HIGH)
    trigger(lone, LOW)
    assert claims(lone) == ["high#1"]
    lone.node.ctx.budget = 1
    lone.answer("claim", FULL)
    lone.wait(3 * YIELD_S)
    assert {one.slots for one in lone.node.pursuits.pursuits.values() if one.action.run != "runs#1"} == {"budget"}

    lone.node.ctx.budget = 3
    lone.wait(SETTINGS.election_timeout_s)

    assert claims(lone) == ["high#1"]


def test_runs_that_wait_for_a_full_budget_look_at_no_other_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds may wait, and each looks every second: the node must not compare them all with each other."""
    plain = job("plain")
    lone = Lone(plain, settings=structs.replace(SETTINGS, budget_client=1)).ready()
    trigger(lone, plain)
    grant(lone)
    for number in range(2, 40):
        trigger(lone, plain, str(number))
    pursuits = lone.node.pursuits
    order, looked = pursuits._order, []

    def counted(_: object, one: Pursuit) -> tuple[int, float, float, str]:
        looked.append(one)
        return order(one)

    monkeypatch.setattr(type(pursuits), "_order", counted)
    lone.wait(3.0)

    assert len([one for one in pursuits.pursuits.values() if one.phase == "waiting"]) == 38
    assert looked == []


def test_many_that_wait_for_a_pool_do_not_look_at_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them looks every few seconds. What one look finds out serves all that look at the same instant."""
    lone = Lone(LOW, settings=ROOMY).ready()
    lone.sweep(*[open_run(f"low#{number}", of=LOW, fire_at=EPOCH + number / 1000) for number in range(MANY)])
    for _ in range(50):
        lone.wait(1.0)
        if lone.waiting(Claim):
            lone.answer("claim", FULL)
    pursuits = lone.node.pursuits
    assert all(one.slots == "pool heavy" for one in pursuits.pursuits.values())
    order, looked = pursuits._order, []

    def counted(_: object, one: Pursuit) -> tuple[float, float, float, str]:
        looked.append(one)
        return order(one)

    monkeypatch.setattr(type(pursuits), "_order", counted)
    for _ in range(20):
        lone.wait(1.0)
        if lone.waiting(Claim):
            lone.answer("claim", FULL)

    assert len(looked) / 20 < 10 * MANY, "a few times each run, in each second; not each one for each other one"


def standing(lone: Lone, pursuit: Pursuit) -> float:
    """For how long a run lets another one go first, found by a look at every run."""
    pursuits, mono = lone.node.pursuits, lone.now.mono
    bounds = [0.0]
    members = lone.node.ctx.membership.members.values()
    gpu = any(member.tags == ("gpu",) and member.state in (ALIVE, SUSPECT) for member in members)
    for other in pursuits.pursuits.values():
        job = lone.node.ctx.definition_for(other.action)
        there = other.phase in ("electing", "due", "claiming", "waiting") and mono >= other.absent_until
        before = other is not pursuit and pursuits._order(other) < pursuits._order(pursuit)
        if job is None or job.pool != "heavy" or not there or not before:
            continue
        if other.phase == "waiting":
            bounds.append(YIELD_TO_OTHERS_S if gpu or not job.tags else 0.0)
        elif other.slots != "budget" and (other.limited or other.slots):
            bounds.append(float("inf") if other.slots == "pool heavy" else 0.0)
        elif other.phase != "due" or other.at <= mono + YIELD_S:
            bounds.append(YIELD_S)
    return max(bounds)


@pytest.mark.parametrize("seed", range(20))
def test_who_goes_first_is_what_a_look_at_every_run_says(seed: int) -> None:
    """A look at an earlier instant does not count, and a run that has left the line since does not."""
    chance = random.Random(seed)
    tagged = job("tagged", pool="heavy", priority=3, tags=("gpu",))
    lone = beside_one_with_a_gpu(LOW, HIGH, tagged)
    for number in range(60):
        of = chance.choice((LOW, LOW, HIGH, tagged))
        if of is tagged:
            lone.sweep(open_run(f"tagged#{number}", of=tagged, fire_at=EPOCH + chance.uniform(-50, 50)))
        else:
            trigger(lone, of, str(number))
        lone.wait(chance.choice((0.0, 0.0, 0.2, 1.0, 3.0)))
        if lone.waiting(Claim) and chance.random() < 0.8:
            other = Answer(LIMITED, by="concurrency: 1 of 1 run", in_s=LIMIT_RETRY_S)
            lone.answer("claim", chance.choice((FULL, FULL, FULL, other)))
        if chance.random() < 0.1:
            peer(lone).tags = ("gpu",) if peer(lone).tags != ("gpu",) else ("fast",)
        lone.wait(0.001)
        for pursuit in chance.choices([*lone.node.pursuits.pursuits.values()], k=5):
            found = lone.node.pursuits._goes_first(pursuit, "heavy", lone.now)
            assert found[1] == standing(lone, pursuit)
            assert (found[0] is None) == (found[1] == 0.0)


def test_a_claim_for_a_driver_that_waits_takes_nothing_from_those_that_compute() -> None:
    computes, waits = job("computes"), job("waits", launch=SparkSubmit(application="a.py", deploy_mode="cluster"))
    lone = Lone(computes, waits, settings=structs.replace(SETTINGS, budget_client=1, budget_cluster=1)).ready()
    trigger(lone, waits)
    trigger(lone, computes)
    assert claims(lone) == ["waits#1", "computes#1"]


@pytest.mark.parametrize("seed", range(12))
def test_three_nodes_start_what_waits_by_priority(seed: int) -> None:
    """Random runs come to random nodes while another holds the pool; runs end after random times."""
    chance = random.Random(seed)
    jobs = {level: job(f"job{level}", pool="heavy", pool_size=1, priority=level, overlap="allow") for level in range(4)}
    holder = job("holder", pool="heavy", pool_size=1)
    cluster = Cluster("a", "b", "c", jobs=[holder, *jobs.values()], settings=ROOMY)
    cluster.trigger("a", asked_for("holder#1", holder))
    cluster.wait(1.0)
    waiting = [f"job{chance.randrange(4)}#{number}" for number in range(12)]
    for run in waiting:
        cluster.trigger(chance.choice("abc"), asked_for(run, jobs[int(run[3])]))
        cluster.wait(chance.choice((0.0, 0.0, 0.3, 2.0)))
    cluster.wait(5.0)
    started = ["holder#1"]
    while len(started) <= len(waiting):
        [(node, _)] = cluster.launches(started[-1])
        cluster.end(node, started[-1])
        cluster.wait(chance.uniform(1.5, 4.0))
        fresh = [run for run in waiting if run not in started and cluster.launches(run)]
        assert len(fresh) == 1, "the slot is taken again, by one run"
        started += fresh
    levels = [int(run[3]) for run in started[1:]]
    assert levels == sorted(levels, reverse=True)


def test_calls_of_hooks_have_a_budget_of_their_own() -> None:
    """A node that is full still calls somebody, and hooks take nothing from jobs."""
    jobs = [job(name, overlap="allow") for name in ("hook~page", "etl")]
    cluster = SparkSubmit(application="a.py", deploy_mode="cluster")
    settings = structs.replace(SETTINGS, budget_client=1, budget_cluster=1)
    lone = Lone(*jobs, job("waits", launch=cluster, overlap="allow"), settings=settings).ready()
    for number in range(HOOKS_HERE + 2):
        trigger(lone, jobs[0], str(number + 1))
    assert len(claims(lone)) == HOOKS_HERE
    trigger(lone, jobs[1])
    trigger(lone, lone.node.jobs["waits"])
    assert claims(lone)[HOOKS_HERE:] == ["etl#1", "waits#1"]
