"""Exchanges between three nodes and a ledger, recorded as readable text.

After an intended change: PYTHONPATH=.:tests python tests/core/node/test_transcripts.py --rewrite
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.small_cluster import EPOCH, MONO, Cluster, asked_for, job

from coordd.core.jobs.job import Retry
from coordd.core.ledger.requests import Cancel, Revoke, Suspend

HERE = Path(__file__).parent / "transcripts"


def launch_on_three_nodes() -> Cluster:
    """Three nodes start. One of them gets a trigger, one launches the run, and all hear how it ended."""
    cluster = Cluster("a", "b", "c", jobs=[job()])
    cluster.wait(3.0)
    cluster.trigger("b", asked_for())
    cluster.wait(7.0)
    cluster.end("b", "sales#1")
    cluster.wait(1.0)
    return cluster


def takeover() -> Cluster:
    """The owner of a scheduled run is killed. The others watch its lease until the end;
    then one of them launches it again.
    """
    cluster = Cluster("a", "b", "c", jobs=[job(every_s=300.0)])
    cluster.wait(290.0)
    cluster.log.clear()
    cluster.wait(20.0)
    (owner, _), *_ = cluster.launches("sales@2025-01-29T08:05:00Z")
    cluster.kill(owner)
    cluster.wait(80.0)
    (successor, _) = cluster.launches("sales@2025-01-29T08:05:00Z")[-1]
    cluster.end(successor, "sales@2025-01-29T08:05:00Z")
    cluster.wait(1.0)
    return cluster


def back_after_a_restart() -> Cluster:
    """The machine of the owner restarts. Its daemon is back after two seconds and tells the ledger that
    the attempt is over. Nobody waits for the lease.
    """
    cluster = Cluster("a", "b", "c", jobs=[job()])
    cluster.wait(3.0)
    cluster.trigger("b", asked_for())
    cluster.wait(7.0)
    launch = cluster.shells["b"].launch_of("sales#1")
    cluster.log.clear()
    cluster.kill("b")
    cluster.wait(2.0)
    cluster.tell("b", "is back, after another boot")
    back = cluster.boot("b", 2)
    back.do(back.node.testimonies.over, "record", launch, "its machine has restarted")
    cluster.start("b")
    cluster.wait(3.0)
    [successor] = [name for name, attempt in cluster.launches("sales#1") if attempt == 1]
    cluster.end(successor, "sales#1")
    cluster.wait(1.0)
    return cluster


def retry_on_another_node() -> Cluster:
    """A run fails on the node that would win the election of its retry too. That node tries last: the retry is on
    another node.
    """
    cluster = Cluster("a", "b", "c", jobs=[job(retry=Retry(attempts=2, delay_s=5.0))])
    cluster.wait(3.0)
    cluster.trigger("a", asked_for(of=cluster.jobs["sales"]))
    cluster.wait(1.0)
    [(first, _)] = cluster.launches("sales#1")
    cluster.end(first, "sales#1", "failure", 3)
    cluster.wait(6.0)
    [second] = [name for name, attempt in cluster.launches("sales#1") if attempt == 1]
    cluster.end(second, "sales#1")
    cluster.wait(1.0)
    return cluster


def trigger_with_the_ledger_away() -> Cluster:
    """A node accepts a trigger while the ledger does not answer. The request stays on the node's disk; the run starts
    when the ledger answers.
    """
    cluster = Cluster("a", "b", jobs=[job()])
    cluster.wait(3.0)
    cluster.log.clear()
    cluster.ledger_away = True
    cluster.tell("", "the ledger goes away")
    cluster.trigger("a", asked_for())
    cluster.wait(2.5)
    cluster.ledger_away = False
    cluster.tell("", "the ledger is back")
    cluster.wait(2.0)
    cluster.end("a", "sales#1")
    cluster.wait(1.0)
    return cluster


def gate_ahead() -> Cluster:
    """The gate of a scheduled run opens shortly before its fire time, and people come in between: it has begun. The
    runner of the first run is told of its cancellation before it starts anything; the second run starts.
    """
    cluster = Cluster("a", "b", jobs=[job(every_s=300.0)])
    cluster.wait(298.0)
    cluster.log.clear()
    for fire_time in ("2025-01-29T08:05:00Z", "2025-01-29T08:10:00Z"):
        run = f"sales@{fire_time}"
        cluster.wait(datetime.fromisoformat(fire_time).timestamp() - EPOCH - (cluster.mono - MONO) - 0.005)
        (owner, _), *_ = cluster.launches(run)
        cluster.person_asks(Revoke(run=run, by="ann"))
        cluster.person_asks(Suspend(job="sales", suspended=True, by="ann"))
        cluster.person_asks(Suspend(job="sales", suspended=False, by="ann"))
        if fire_time.endswith("05:00Z"):
            cluster.person_asks(Cancel(run=run, by="ann"))
            cluster.cancelled(owner, run)
        else:
            cluster.wait(1.0)
            cluster.end(owner, run)
    return cluster


def fire_times_that_nobody_launched() -> Cluster:
    """The only node is away for three fire times of a job with `misfire = "once"`. The last of them is launched, and
    settles the others. Then the job is suspended until the next one is too late: it leaves no row. The first request
    after that finds it settled.
    """
    cluster = Cluster("a", jobs=[job(every_s=300.0, start_within_s=60.0)])
    cluster.wait(5.0)
    cluster.kill("a")
    cluster.wait(901.0)
    cluster.log.clear()
    cluster.boot("a", 2)
    cluster.start("a")
    cluster.wait(10.0)
    cluster.end("a", "sales@2025-01-29T08:15:00Z")
    cluster.person_asks(Suspend(job="sales", suspended=True, by="ann"))
    cluster.wait(380.0)
    for one in cluster.ledger.fires("sales").stretches:
        after, upto = (datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S") for at in (one.after, one.upto))
        cluster.tell("ledger", f"keeps: {one.decision} after {after} up to {upto}")
    return cluster


CONVERSATIONS: tuple[Callable[[], Cluster], ...] = (
    launch_on_three_nodes,
    takeover,
    back_after_a_restart,
    retry_on_another_node,
    gate_ahead,
    fire_times_that_nobody_launched,
    trigger_with_the_ledger_away,
)


def told(conversation: Callable[[], Cluster]) -> str:
    return "\n".join([f"# {conversation.__doc__}", "", *conversation().log, ""])


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda one: one.__name__)
def test_the_conversation_is_as_it_was_written_down(conversation: Callable[[], Cluster]) -> None:
    assert told(conversation) == (HERE / f"{conversation.__name__}.txt").read_text()


def test_there_is_no_transcript_without_its_conversation() -> None:
    assert sorted(path.stem for path in HERE.glob("*")) == sorted(one.__name__ for one in CONVERSATIONS)


if __name__ == "__main__":
    if sys.argv[1:] != ["--rewrite"]:
        sys.exit(__doc__)
    HERE.mkdir(exist_ok=True)
    for one in CONVERSATIONS:
        (HERE / f"{one.__name__}.txt").write_text(told(one))
        print(f"wrote {one.__name__}.txt")
