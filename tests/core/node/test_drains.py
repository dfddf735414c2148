"""Holds that nodes learn from the ledger: drains and the pause of all jobs. Also runs that only one node may launch."""

from __future__ import annotations

from support.small_cluster import Cluster, Lone, asked_for, job, open_answer

from coordd.core.jobs.job import pinned
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import Keep
from coordd.core.ledger.rows import ALL, Hold
from coordd.core.ledger.runner_requests import Registration
from coordd.core.wire.events import TaskReceived

LEASE_S = job().lease_s


def cluster() -> Cluster:
    made = Cluster("a", "b", "c", jobs=[job(overlap="allow")])
    made.wait(2.0)
    return made


def keep(of: Cluster, key: str, left_s: float = 0.0, *, held: bool = True) -> None:
    until = of.time().wall + left_s if left_s else 0.0
    of.ledger.ask(Keep(key=key, held=held, by="ann", uid=7, until=until, note="why"))


def only(node: str, run: str = "sales#1") -> Registration:
    of = asked_for(run, job(overlap="allow"))
    of.digest = pinned(of.digest, node)
    return of


def says(lone: Lone, drain: Hold | None) -> OpenAnswer:
    """A sweep in which the ledger has this drain of the node."""
    answer = open_answer(jobs=lone.node.ctx.jobs)
    answer.holds = {"node:a": drain} if drain else {}
    return answer


def test_a_drain_in_the_ledger_is_heard_and_ends_by_itself_or_by_a_person() -> None:
    nodes = cluster()
    keep(nodes, "node:b", left_s=60.0)
    keep(nodes, "node:c")
    nodes.wait(11.0)
    assert [nodes[name].state for name in "abc"] == ["ready", "draining", "draining"]
    assert nodes["b"].drains.own is not None
    for number in range(4):
        nodes.trigger("b", asked_for(f"sales#{number}", job(overlap="allow")))
        nodes.wait(2.0)
        assert nodes.launches(f"sales#{number}") == [("a", 0)]
        nodes.end("a", f"sales#{number}")
    nodes.wait(60.0)
    assert [nodes[name].state for name in "abc"] == ["ready", "ready", "draining"]
    keep(nodes, "node:c", held=False)
    nodes.wait(11.0)
    assert nodes["c"].state == "ready"


def test_a_drained_node_that_has_not_heard_of_it_is_granted_nothing() -> None:
    nodes = Cluster("a", jobs=[job()])
    nodes.wait(2.0)
    keep(nodes, "node:a")
    nodes.trigger("a", asked_for("sales#1"))
    nodes.wait(0.5)
    assert nodes["a"].state == "ready"
    assert nodes.launches("sales#1") == []
    keep(nodes, "node:a", held=False)
    nodes.wait(30.0)
    assert nodes.launches("sales#1") == [("a", 0)]


def test_a_drain_without_the_ledger_stays_until_somebody_ends_it() -> None:
    lone = Lone(job()).ready()
    lone.do(lone.node.drain, Hold(by="ann"))
    lone.sweep()
    assert lone.node.state == "draining"
    assert lone.node.drains.of_node("a") is not None
    lone.do(lone.node.drain_kept, "a", None)
    assert lone.node.state == "ready"


def test_a_sweep_from_before_a_drain_or_its_end_does_not_undo_it() -> None:
    """The ledger may have answered it before the change; the sweep after it tells."""
    lone = Lone(job()).ready()
    for hold, state in ((Hold(by="ann"), "draining"), (None, "ready")):
        lone.do(lone.node.look_again)
        sent_at = lone.now.mono
        lone.pass_time(0.1)
        lone.do(lone.node.drain_kept, "a", hold)
        lone.answer("open", says(lone, None if hold else Hold(by="ann")), sent_at=sent_at)
        assert lone.node.state == state
        lone.pass_time(0.1)
        lone.do(lone.node.look_again)
        lone.answer("open", says(lone, hold))
        assert lone.node.state == state
    lone.do(lone.node.look_again)
    lone.answer("open", says(lone, Hold(by="bob")))
    assert lone.node.state == "draining"


def test_nothing_starts_in_the_pause_of_all_jobs() -> None:
    nodes = cluster()
    keep(nodes, ALL, left_s=60.0)
    nodes.trigger("a", asked_for("sales#1", job(overlap="allow")))
    nodes.wait(50.0)
    assert nodes.launches("sales#1") == []
    assert nodes["c"].drains.of_job("sales") is nodes["c"].drains.pause is not None
    nodes.wait(30.0)
    assert [attempt for _, attempt in nodes.launches("sales#1")] == [0]


def test_only_the_named_node_launches_a_run_and_its_next_attempt() -> None:
    nodes = cluster()
    nodes.trigger("a", only("b"))
    nodes.wait(2.0)
    assert nodes.launches("sales#1") == [("b", 0)]
    nodes.kill("b")
    nodes.wait(3 * LEASE_S)
    assert nodes.state("sales#1") == "retry"
    nodes.boot("b", 2)
    nodes.start("b")
    nodes.wait(20.0)
    assert nodes.launches("sales#1") == [("b", 1)]  # the list does not contain launches from before the restart
    nodes.end("b", "sales#1")
    assert nodes.state("sales#1") == "success"


def test_the_others_say_why_they_do_not_launch_it() -> None:
    nodes = cluster()
    nodes.kill("b")
    nodes.trigger("a", only("b"))
    nodes.wait(30.0)
    assert nodes.state("sales#1") == "pending"
    assert "only b may launch it" in nodes["a"].pursuits.pursuits["sales#1"].why


def test_an_event_of_the_grant_has_the_digest_of_the_row() -> None:
    """Without the digest a witness would restore the run as one that any node may launch."""
    nodes = cluster()
    nodes.trigger("a", only("b"))
    nodes.wait(2.0)
    row = nodes.ledger.run("sales#1")
    assert row is not None
    (received,) = [event for _, event in nodes.said if isinstance(event, TaskReceived)]
    assert received.digest == row.digest == pinned("d1", "b")
    assert nodes.shells["b"].launch_of("sales#1").digest == row.digest
