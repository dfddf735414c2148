"""Whole clusters of the simulator, each run replayed from the journals that its nodes wrote."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import simulator
from simulator.machines.daemon import Daemon
from simulator.machines.server import Server
from simulator.people import PERSON
from simulator.world import Host

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Cancel, Replay, Resolve, Revoke, Suspend
from coordd.core.ledger.words import OK
from coordd.core.wire.chain import TYPE as CONTROL
from coordd.core.wire.events import Event, flatten
from coordd.core.wire.journal_line import encode_line
from coordd.history.replay.replay import replay

# The records of what people did, as the control server writes them.
METHODS = {
    Cancel: "run.cancel",
    Revoke: "run.revoke",
    Resolve: "run.resolve",
    Replay: "deadletter.replay",
    Suspend: "job.suspend",
}

# The clocks of these worlds, which last two minutes, go wrong by up to 1 % (RHO).
SKEW_S = 1.0


class Journals:
    """What every node of a world wrote. ``lines``: by node; ``runs``: all that a record tells of."""

    def __init__(self) -> None:
        self.lines: dict[str, list[bytes]] = defaultdict(list)
        self.runs: set[str] = set()

    def of(self, seed: int) -> simulator.World:
        """Run the world of that seed without faults. Nobody prunes: a pruned run may begin again."""
        plan = simulator.draw(seed, faults=())
        plan = dataclasses.replace(plan, items=tuple([item for item in plan.items if item.kind != "prune"]))
        journal, ask = Daemon.journal, Server.ask

        def written(daemon: Daemon, events: Sequence[Event], *, sync: bool) -> str:
            for event in events:
                self.add(daemon, flatten(event, **_origin(daemon)))
            return journal(daemon, events, sync=sync)

        def asked(server: Server, host: Host, request: Any, answered: Callable[[Any], None]) -> None:
            def told(answer: Any) -> None:
                answered(answer)
                if isinstance(answer, Answer) and answer.word == OK and host.daemon is not None:
                    self.add(host.daemon, _act(host.daemon, request))

            person = type(request) in METHODS and request.by == PERSON
            ask(server, host, request, told if person else answered)

        with mock.patch.object(Daemon, "journal", written), mock.patch.object(Server, "ask", asked):
            return simulator.live(plan)

    def add(self, daemon: Daemon, record: dict[str, Any]) -> None:
        """One line of that node."""
        self.lines[daemon.host.name].append(encode_line(record))
        if record["type"].startswith("task-"):
            self.runs.add(record["run"])

    def write(self, top: Path) -> None:
        for name, lines in self.lines.items():
            (top / name).mkdir()
            (top / name / "current.jsonl").write_bytes(b"".join(lines))


def _origin(daemon: Daemon) -> dict[str, Any]:
    return {
        "hostname": daemon.host.name,
        "pid": daemon.pid,
        "incarnation": daemon.incarnation,
        "seq": 0,
        "utcoffset": 0,
    }


def _act(daemon: Daemon, request: Any) -> dict[str, Any]:
    """What a person did, in the node's audit."""
    resumes = isinstance(request, Suspend) and not request.suspended
    return {
        "type": CONTROL,
        **_origin(daemon),
        "clock": daemon.node.ctx.clock.value,
        "timestamp": daemon.time().wall,
        "method": "job.resume" if resumes else METHODS[type(request)],
        "subject": request.job if isinstance(request, Suspend) else request.run,
        "by": request.by,
    }


# 1: three nodes, datagrams. 3: runs wait in queues, and one is rejected by another's claim. 4: a broker, 39 runs.
@pytest.mark.parametrize("seed", [1, 3, 4])
def test_the_journals_of_a_world_replay_without_a_difference(seed: int, tmp_path: Path) -> None:
    journals = Journals()
    world = journals.of(seed)
    journals.write(tmp_path)

    states: Counter[str] = Counter()
    differences = []
    for run in sorted(journals.runs):
        replayed = replay([str(tmp_path)], run, SKEW_S)
        differences += replayed.differences
        states[replayed.recorded] += 1
        assert replayed.damaged == 0
        assert replayed.journals == len(world.hosts)
    assert differences == []
    assert states["success"] >= 5
    assert states["failure"] >= 1
    assert sum(states.values()) >= 30, "many runs"
