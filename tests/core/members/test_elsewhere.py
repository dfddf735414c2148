"""What fails here and succeeds elsewhere: its retry goes there first, and the node stands aside for a while."""

from __future__ import annotations

import itertools

import pytest
from support.small_cluster import SETTINGS, Cluster, Lone, asked_for, job, open_run

from coordd.core.jobs.job import Job, Retry
from coordd.core.ledger.requests import Keep
from coordd.core.ledger.rows import OF_NODE
from coordd.core.ledger.words import RETRY
from coordd.core.members.elsewhere import ASIDE_MAX_S, ASIDE_S, FORGIVEN_S, STRIKES
from coordd.core.runs.pursued import WAITING
from coordd.core.wire.events import (
    Action,
    Candidacy,
    Task,
    TaskFailed,
    TaskRetried,
    TaskSucceeded,
    WorkerElect,
    WorkerElectAck,
    WorkerHeartbeat,
)
from core.runs.claims import hears_an_elect, out, pursued

JOBS = [job(name, retry=Retry(attempts=3, delay_s=1.0), overlap="allow") for name in ("sales", "at-a", "at-b", "at-c")]
ANNOUNCED_S = 3 * 2.0
_numbers = itertools.count(1)


def fails_on(cluster: Cluster, node: str, of: Job = JOBS[0]) -> str:
    """A run fails on that node, and then succeeds on the node that tries it again, which is returned."""
    run = f"{of.name}#{next(_numbers)}"
    for name, other in cluster.shells.items():
        other.node.ctx.launch_problems = {} if name == node else {of.name: "not now"}
    cluster.trigger(node, asked_for(run, of=of))
    cluster.wait(1.5)
    assert cluster.launches(run) == [(node, 0)]
    for other in cluster.shells.values():
        other.node.ctx.launch_problems = {}
    cluster.end(node, run, "failure", 3)
    cluster.wait(2.5)
    [(second, _)] = [launch for launch in cluster.launches(run) if launch[1] == 1]
    cluster.end(second, run)
    return second


def aside(cluster: Cluster) -> list[str]:
    return [name for name, shell in cluster.shells.items() if shell.alive and shell.node.ctx.aside]


def of_which_one_is_aside() -> Cluster:
    """Three nodes; a stands aside."""
    cluster = Cluster("a", "b", "c", jobs=JOBS)
    cluster.wait(3.0)
    for _ in range(STRIKES):
        fails_on(cluster, "a")
    cluster.wait(ANNOUNCED_S + 1.0)
    assert aside(cluster) == ["a"]
    return cluster


def becomes(cluster: Cluster, state: str) -> None:
    for _ in range(30):
        if cluster["a"].state == state:
            return
        cluster.wait(0.5)
    raise AssertionError(f"a is {cluster['a'].state} for 15 s; expected: {state}")


@pytest.mark.parametrize("node", ["a", "b", "c"])
def test_a_retry_is_on_another_node(node: str) -> None:
    cluster = Cluster("a", "b", "c", jobs=JOBS)
    cluster.wait(3.0)
    for _ in range(3):
        assert fails_on(cluster, node) != node


def test_a_retry_is_on_the_same_node_when_no_other_is_alive() -> None:
    cluster = Cluster("a", "b", jobs=JOBS)
    cluster.wait(3.0)
    cluster.kill("b")
    cluster.wait(10.0)
    assert fails_on(cluster, "a") == "a"


def test_the_node_that_failed_is_only_later_when_the_others_cannot() -> None:
    cluster = Cluster("a", "b", jobs=JOBS)
    cluster.wait(3.0)
    run = f"sales#{next(_numbers)}"
    cluster["b"].ctx.launch_problems = {"sales": "not now"}
    cluster.trigger("a", asked_for(run, of=JOBS[0]))
    cluster.wait(1.5)
    cluster.end("a", run, "failure", 3)
    cluster.wait(3.0)
    assert cluster.launches(run) == [("a", 0), ("a", 1)]


def test_a_node_stands_aside_after_some_runs_that_succeed_elsewhere() -> None:
    cluster = Cluster("a", "b", "c", jobs=JOBS)
    cluster.wait(3.0)
    for _ in range(STRIKES):
        assert aside(cluster) == []
        fails_on(cluster, "a")
    cluster.wait(ANNOUNCED_S + 1.0)
    assert aside(cluster) == ["a"]
    assert "failed here succeeded on other nodes" in cluster["a"].ctx.aside

    for number in range(5):
        cluster.trigger("a", asked_for(f"sales#aside{number}", of=JOBS[0]))
    cluster.wait(1.0)
    for number in range(5):
        [(owner, _)] = cluster.launches(f"sales#aside{number}")
        assert owner != "a"
        cluster.end(owner, f"sales#aside{number}")
    cluster.wait(ASIDE_S)
    assert aside(cluster) == []


def test_it_takes_what_no_other_node_would() -> None:
    cluster = of_which_one_is_aside()
    for other in ("b", "c"):
        cluster[other].ctx.launch_problems = {"sales": "not now"}
    cluster.trigger("a", asked_for("sales#alone", of=JOBS[0]))
    cluster.wait(3.0)
    assert aside(cluster) == ["a"]
    assert cluster.launches("sales#alone") == [("a", 0)]


def test_never_more_than_half_of_the_others_stand_aside() -> None:
    cluster = Cluster("a", "b", "c", jobs=JOBS)
    cluster.wait(3.0)
    for _ in range(STRIKES):
        for node, of in zip("cba", reversed(JOBS), strict=False):
            fails_on(cluster, node, of)
            assert len(aside(cluster)) <= 1
    for _ in range(30):
        cluster.wait(1.0)
        assert len(aside(cluster)) <= 1
    assert aside(cluster) == ["a"]  # all three would; the lowest hostname does
    cluster.kill("b")
    cluster.wait(10.0)
    assert aside(cluster) == []  # of two, none may


def test_a_drained_node_does_not_stand_aside_and_announces_it_again_when_it_is_back() -> None:
    cluster = of_which_one_is_aside()
    cluster.ledger.ask(Keep(key=OF_NODE + "a", held=True, by="ann", uid=7))
    becomes(cluster, "draining")
    cluster.wait(2.5)
    assert aside(cluster) == []
    cluster.ledger.ask(Keep(key=OF_NODE + "a", held=False, by="ann", uid=7))
    becomes(cluster, "ready")
    cluster.wait(ANNOUNCED_S - 0.5)
    assert aside(cluster) == []
    cluster.wait(4.0)
    assert aside(cluster) == ["a"]


def test_of_two_nodes_none_stands_aside() -> None:
    cluster = Cluster("a", "b", jobs=JOBS)
    cluster.wait(3.0)
    for _ in range(STRIKES + 1):
        fails_on(cluster, "a")
    for _ in range(20):
        cluster.wait(1.0)
        assert aside(cluster) == []


# ---- one node, and what it hears


def standing() -> Lone:
    lone = Lone(*JOBS, peers=("b.1", "c.1")).ready()
    strike(lone)
    return lone


def ends(lone: Lone, kind: type[Task], run: str, node: str, token: int) -> None:
    event = kind(uuid="", name=run.partition("#")[0], run=run, node=node, token=token)
    lone.node.pursuits.endings.heard(event, lone.now)


def strike(lone: Lone, runs: int = STRIKES, job: str = "sales", node: str = "a.1") -> None:
    for _ in range(runs):
        run, token = f"{job}#{next(_numbers)}", next(_numbers)
        ends(lone, TaskFailed, run, node, token)
        ends(lone, TaskSucceeded, run, "z.1", token + 1)


def alive(lone: Lone, seconds: float, **said: bool) -> None:
    """Time passes, and both peers are heard."""
    for _ in range(int(seconds / 2.0)):
        lone.wait(2.0)
        for peer in ("b.1", "c.1"):
            lone.hear(
                peer, WorkerHeartbeat(state="ready", failing=said.get(peer[0], False), clock=next(_numbers) + 100)
            )


def test_it_is_announced_before_it_counts() -> None:
    lone = standing()
    assert lone.node.ctx.failing
    lone.wait(2.0)
    assert lone.said[-1].failing is True  # type: ignore[attr-defined]  # a heartbeat
    assert lone.node.ctx.aside == ""
    alive(lone, ANNOUNCED_S)
    assert lone.node.ctx.aside


def test_it_lasts_longer_each_time_and_begins_anew_after_a_day() -> None:
    lone = standing()
    lengths = []
    for _ in range(9):
        lengths.append(lone.node.pursuits.endings.elsewhere.until - lone.now.mono - ANNOUNCED_S)
        lone.wait(lengths[-1] + ANNOUNCED_S + 1.0)
        assert not lone.node.ctx.failing
        strike(lone)
    assert [round(length) for length in lengths[:3]] == [ASIDE_S, 2 * ASIDE_S, 4 * ASIDE_S]
    assert max(lengths) == pytest.approx(ASIDE_MAX_S)
    lone.pass_time(ASIDE_MAX_S + ANNOUNCED_S + FORGIVEN_S)
    lone.wait(1.0)
    strike(lone)
    assert lone.node.pursuits.endings.elsewhere.until - lone.now.mono - ANNOUNCED_S == pytest.approx(ASIDE_S)


def test_a_success_of_the_job_here_takes_its_strikes_away() -> None:
    lone = Lone(*JOBS, peers=("b.1", "c.1")).ready()
    strike(lone, STRIKES - 1)
    ends(lone, TaskSucceeded, "sales#ok", "a.1", 1)
    strike(lone, STRIKES - 1)
    assert not lone.node.ctx.failing
    strike(lone, 1, job="other")
    assert lone.node.ctx.failing


def test_what_succeeded_before_or_after_a_day_or_here_is_no_strike() -> None:
    lone = Lone(*JOBS, peers=("b.1", "c.1")).ready()
    for number in range(STRIKES):
        for run in ("old", "late", "own"):
            ends(lone, TaskFailed, f"{run}#{number}", "a.1", 5)
        ends(lone, TaskSucceeded, f"old#{number}", "b.1", 4)
        ends(lone, TaskSucceeded, f"own#{number}", "a.1", 6)
        lone.pass_time(7 * 3600.0)
        ends(lone, TaskSucceeded, f"late#{number}", "b.1", 6)
    assert not lone.node.ctx.failing


def test_what_was_lost_here_is_no_strike_but_its_retry_goes_elsewhere() -> None:
    lone = Lone(*JOBS, peers=("b.1", "c.1")).ready()
    elsewhere = lone.node.pursuits.endings.elsewhere
    for number in range(STRIKES + 1):
        ends(lone, TaskRetried, f"sales#{number}", "a.1", 5)
        assert elsewhere.load(Action("sales", f"sales#{number}", 1, lone.now.wall, scheduled=False)) > 0
        ends(lone, TaskSucceeded, f"sales#{number}", "b.1", 6)
    assert not lone.node.ctx.failing


def test_its_statement_says_why() -> None:
    lone = standing()
    alive(lone, ANNOUNCED_S + 2.0)
    assert lone.node.ctx.aside
    lone.forget()
    action = Action("sales", "sales#5", 0, lone.now.wall, scheduled=False, digest="d1")
    stands = Candidacy(0, 5, "b.1", "")
    lone.hear("b.1", WorkerElect(id="sales#5/0", topic="command", candidacy=stands, view=("a.1", "b.1"), action=action))
    [ack] = [event for event in lone.said if isinstance(event, WorkerElectAck)]
    assert ack.candidacy.abstains == lone.node.ctx.aside


def test_a_node_that_has_announced_it_counts_if_its_hostname_is_lower() -> None:
    lone = Lone(*JOBS, name="b", peers=("a.1", "c.1")).ready()
    strike(lone, node="b.1")
    for lower, higher, wanted in ((True, False, False), (False, True, True), (False, False, True), (True, True, False)):
        for _ in range(5):
            lone.wait(2.0)
            for peer, failing in (("a.1", lower), ("c.1", higher)):
                lone.hear(peer, WorkerHeartbeat(state="ready", failing=failing, clock=next(_numbers) + 100))
        lone.wait(2.0)
        assert bool(lone.node.ctx.aside) == wanted, (lower, higher)


# ---- when the node that failed asks for the retry

RETRIED = "sales#1"


def failed_here(*, full: bool = False) -> Lone:
    """Attempt 0 has just failed here. ``full``: other runs have taken all the budget of this node since."""
    lone = Lone(job(retry=JOBS[0].retry, overlap="allow"), peers=("b.1",)).ready()
    ends(lone, TaskFailed, RETRIED, "a.1", 5)
    for number in range(SETTINGS.budget_client if full else 0):
        lone.node.pursuits.started(f"sales#long{number}", 0, number, waits=False)
    return lone


def turn_s(lone: Lone, standing: int) -> float:
    """The others may decide at their timeout; then each that stands has its delay, and the opening took one."""
    return SETTINGS.election_timeout_s + (1 + standing) * lone.node.ctx.stagger_s


def is_asked_for_after(lone: Lone, seconds: float) -> None:
    lone.wait(seconds - 0.001)
    assert not out(lone, RETRIED)
    lone.wait(0.002)
    assert out(lone, RETRIED)


def test_the_node_that_failed_waits_until_each_other_has_decided() -> None:
    """b may wait for the statement of a node that is lost, which this node knows already."""
    lone = failed_here()
    hears_an_elect(lone, RETRIED, attempt=1)
    assert pursued(lone, RETRIED).rank == 1
    is_asked_for_after(lone, turn_s(lone, standing=2))


def test_it_waits_too_when_a_hash_says_that_it_is_the_first() -> None:
    """Without a bus no node knows what failed on another."""
    lone = failed_here()
    lone.do(lone.node.bus_changed, False)
    lone.sweep(open_run(RETRIED, RETRY, attempt=1))
    is_asked_for_after(lone, turn_s(lone, standing=2))


def test_budget_that_becomes_free_does_not_bring_its_turn_forward() -> None:
    lone = failed_here(full=True)
    hears_an_elect(lone, RETRIED, attempt=1)
    hears_an_elect(lone, "sales#2")
    for run in (RETRIED, "sales#2"):
        assert pursued(lone, run).phase == WAITING
    lone.do(lone.node.pursuits.gone, "sales#long0", 0)
    assert out(lone, "sales#2")  # which failed nowhere: it has the free place
    lone.do(lone.node.pursuits.gone, "sales#long1", 1)
    is_asked_for_after(lone, turn_s(lone, standing=1))


def test_it_waits_for_no_other_where_no_other_stands() -> None:
    lone = failed_here(full=True)
    action = Action("sales", RETRIED, 1, digest="d1")
    busy = Candidacy(0, 5, "b.1", "no budget")
    said = WorkerElect(id=f"{RETRIED}/1", topic="command", candidacy=busy, view=("a.1", "b.1"), action=action)
    lone.hear("b.1", said)
    assert pursued(lone, RETRIED).phase == WAITING
    lone.do(lone.node.pursuits.gone, "sales#long0", 0)
    assert out(lone, RETRIED)
