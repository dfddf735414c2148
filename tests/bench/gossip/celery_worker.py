"""The peer: one real Celery worker (solo pool, gossip, mingle, heartbeat). The benchmark observes its elections.

Celery's code is not changed. A separate election topic keeps the task queue out of the measured path. Each event is
a line in a pipe: {"k": kind, "w": worker, "t": CLOCK_MONOTONIC in ns, …}.

usage: celery_worker.py NAME BROKER_URL PIPE WORKERS
"""

from __future__ import annotations

import collections
import contextlib
import json
import sys
import time
from typing import Any

from celery import Celery, bootsteps, signals
from celery.worker.consumer.gossip import Gossip
from celery.worker.control import inspect_command

NAME, BROKER, PIPE = sys.argv[1:4]
WORKERS = int(sys.argv[4])

out = open(PIPE, "wb", buffering=0)  # noqa: SIM115 - for as long as the process lives


def say(kind: str, **fields: Any) -> None:
    """Send one fact to the benchmark."""
    with contextlib.suppress(OSError):
        out.write(json.dumps({"k": kind, "w": NAME, "t": time.monotonic_ns(), **fields}).encode() + b"\n")


app = Celery("peer", broker=BROKER)
app.conf.update(
    worker_hijack_root_logger=False,
    worker_log_color=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    task_ignore_result=True,
)
gossips: list[Gossip] = []


@inspect_command()  # type: ignore[untyped-decorator]  # celery has no types
def peer_alive(_state: Any, **_: Any) -> list[str]:
    """The other workers that this worker believes to be alive."""
    return sorted(worker.hostname for worker in gossips[-1].state.alive_workers())


class Watch(bootsteps.StartStopStep):  # type: ignore[misc]  # the same
    """Adds the election topic, and counts the acks of each election until all have arrived here."""

    requires = (Gossip,)

    def start(self, consumer: Any) -> None:
        gossip = consumer.gossip
        gossips.append(gossip)
        gossip.election_handlers["bench"] = lambda action: say("acted", id=action["id"])
        on_ack = gossip.event_handlers["worker.elect.ack"]
        acks: collections.Counter[str] = collections.Counter()

        def count(event: dict[str, Any]) -> Any:
            acks[event["id"]] += 1
            try:
                return on_ack(event)
            finally:
                if acks[event["id"]] == WORKERS * WORKERS:
                    del acks[event["id"]]
                    say("drained", id=event["id"])

        gossip.event_handlers = {**gossip.event_handlers, "worker.elect.ack": count}


app.steps["consumer"].add(Watch)


@signals.worker_ready.connect  # type: ignore[untyped-decorator]  # the same
def ready(**_: Any) -> None:
    """The worker takes part in the election."""
    say("ready")


if __name__ == "__main__":
    app.worker_main(["worker", "-P", "solo", "-n", f"{NAME}@peer", "-l", "CRITICAL"])
