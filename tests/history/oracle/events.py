"""What the nodes of a cluster in trouble write, seeded: lines of journals, with a node for each.

Nodes have clocks of their own, which are set back at times, and hear of each other's logical clocks only sometimes.
Runs have many attempts, are taken over, end twice, late or never, are launched twice, or never. Two different events
of a run never have the same place in the order of events (merge.run_key): no node writes such.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from coordd.core.jobs.job import run_uuid, scheduled_run
from coordd.core.ledger.fires import HELD_BY_OTHERS, HELD_BY_SUSPENSION
from coordd.core.wire.journal_line import encode_line
from history.journals import DAY, Record, disorder

Line = tuple[int, bytes]  # the number of a node, and what it writes

JOBS = [f"etl-{number:02d}" for number in range(40)]

# How many days the events cover, however many there are.
DAYS = 6

# Events of ``disorder`` at a time, and how many runs they are about.
WILD, WILD_RUNS = 120, 12

TEXTS = ("Grüße ☂", 'q"uo\\te', "line\nbreak\r", "", "a\u2028b", "\udcff.csv", "x" * 2_000, "😀", "{}", "null")

# Intact lines that are not a node's record, by what is added to a good event.
NO_EVENTS: tuple[Record, ...] = (
    {"clock": "soon"},
    {"clock": None},
    {"clock": 2**70},
    {"clock": 1.5},
    {"clock": True},
    {"timestamp": -1.0},
    {"timestamp": 1e12},
    {"timestamp": "now"},
    {"uuid": ""},
    {"uuid": None},
    {"type": None},
    {"hostname": None},
    {"runtime": "NaN"},
    {"token": ""},
    {"utcoffset": 2**40},
    {"attempt": [1]},
)


class Node:
    """One node: its process, its wall clock (seconds before or after the time), its logical clock."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"edge-{number + 1}"
        self.pid = 1000 + number
        self.life = 1
        self.offset = 0.0
        self.clock = 0
        self.seq = 0


class Troubled:
    """A cluster that writes ``total`` events or a few more."""

    def __init__(self, seed: int, total: int, nodes: int = 5) -> None:
        self.rng = random.Random(seed)
        self.nodes = [Node(number) for number in range(nodes)]
        self.pause_s = DAYS * 86_400 / total
        self.total = total
        self.made = 0
        self.runs = 0
        self.now = DAY
        self.clock = 0  # the highest that any node has
        self.token = int(DAY * 1e6)
        self._lines: list[Line] = []

    def lines(self, until: int) -> Iterator[Line]:
        """The next lines, until that many events are made in all."""
        kinds: list[Callable[[], None]] = [self.run, self.reject, self.live, self.wild, self.no_event]
        while self.made < until:
            self.rng.choices(kinds, (80, 5, 8, 1, 1))[0]()
            written, self._lines = self._lines, []
            self.made += len(written)
            self.now += self.pause_s * len(written)
            yield from written

    def say(self, node: Node, kind: str, fields: Record, after_s: float = 0.0) -> None:
        """One event: absent, empty and zero are the same for most readers, so some are left out."""
        rng = self.rng
        if rng.random() < 0.7:
            node.clock = max(node.clock, self.clock)
        node.clock += 1
        node.seq += rng.random() < 0.8
        self.clock = max(self.clock, node.clock)
        record = {
            "type": kind,
            "hostname": node.name,
            "pid": node.pid,
            "incarnation": f"{node.life}-{node.name}",
            "seq": node.seq,
            "utcoffset": 0,
            "clock": node.clock,
            "timestamp": round(self.now + after_s + node.offset, 6),
            **fields,
        }
        if kind.startswith("task-"):
            if record.get("attempt") == 0 and rng.random() < 0.5:
                del record["attempt"]
            if rng.random() < 0.03:
                record.pop("name", None)
            if rng.random() < 0.02:
                record[rng.choice(("args", "kwargs", "reason", "result", "exception", "nothing_known"))] = rng.choice(
                    (*TEXTS, None)
                )
        self._lines.append((node.number, encode_line(record)))

    # ---- what happens

    def task(self) -> Record:
        """A new run: on schedule, or by hand."""
        rng = self.rng
        self.runs += 1
        job = rng.choice(JOBS)
        fire_at = float(round(self.now))
        by_hand = rng.random() < 0.3
        run = f"{job}#{self.runs:x}" if by_hand else scheduled_run(job, fire_at)
        made: Record = {"uuid": run_uuid(run), "name": job, "run": run}
        if not by_hand:
            made["fire_at"] = fire_at
            if rng.random() < 0.2:
                made["due"] = fire_at + rng.randrange(300) / 8
        return made

    def run(self) -> None:
        """A run with its attempts, each on another node than the one before."""
        rng = self.rng
        task = self.task()
        order = rng.sample(self.nodes, len(self.nodes))
        if rng.random() < 0.8:
            self.say(order[-1], "task-sent", {**task, "kwargs": '{"day":"2026-09-21"}', "digest": f"{self.runs:016x}"})
        if rng.random() < 0.3:
            self.elect(task, order)
        last = rng.choices((0, 1, 2, rng.randrange(3, 9)), (75, 15, 6, 4))[0]
        at = 0.05
        for attempt in range(last + 1):
            at = self.attempt(task, attempt, order[attempt % len(order)], order[-1], at, final=attempt == last)

    def elect(self, task: Record, order: list[Node]) -> None:
        """An election about it, which one node or two have recorded."""
        rng = self.rng
        said: Record = {
            "id": f"e{self.runs}",
            "topic": "run",
            "run": task["run"],
            "opened_by": f"{order[-1].name}.{order[-1].pid}",
            "succession": [f"{node.name}.{node.pid}" for node in order[:3]],
            "duration": rng.randrange(64) / 256,
        }
        if rng.random() < 0.3:
            said |= {"abstained": {order[3].name: "budget", order[4].name: "Grüße"}, "silent": [order[3].name]}
        for node in (order[0], order[-1])[rng.random() < 0.3 :]:
            self.say(node, "election-decided", said, 0.02)

    def grant(self, task: Record, attempt: int, node: Node) -> Record:
        """The fields of a grant, with the next token."""
        self.token = max(self.token + 1 + self.rng.randrange(10), int(self.now * 1e6))
        nonce = f"{self.rng.getrandbits(64):016x}"
        named = {"attempt": attempt, "token": self.token, "nonce": nonce, "node": f"{node.name}.{node.pid}"}
        return {**task, **named}

    def attempt(self, task: Record, attempt: int, node: Node, other: Node, at: float, *, final: bool) -> float:
        """One attempt. Returns when the next one may begin, in seconds from now."""
        rng = self.rng
        if rng.random() < 0.04:  # a grant that lapsed before anything was launched
            lapsed = self.grant(task, attempt, other)
            self.say(other, "task-received", {**lapsed, "retries": attempt}, at)
            if rng.random() < 0.5:
                self.say(node, "task-retried", {**lapsed, "reason": "not launched"}, at + 1)
            at += 2.0
        grant = self.grant(task, attempt, node)
        if rng.random() < 0.97:
            more = {"kwargs": '{"day":"2026-09-21"}', "retries": attempt, "eta": "soon" if rng.random() < 0.1 else ""}
            self.say(node, "task-received", {**grant, **more}, at)
        if rng.random() < 0.98:
            self.say(node, "task-started", grant, at + 0.04)
        if rng.random() < 0.1:
            self.say(node, "task-progress", {**grant, "stages": 3}, at + 0.5)
        if rng.random() < 0.02:  # launched twice: under another grant, or the same one on another node
            twice = rng.choice((self.grant(task, attempt, other), {**grant, "nonce": "another"}, grant))
            self.say(other, "task-started", twice, at + rng.random())
        runtime = rng.uniform(0.5, 90.0)
        if final:
            kind, exit_code = rng.choices(FINAL, FINAL_WEIGHTS)[0]
            self.end(grant, node, other, at, runtime, kind, exit_code)
            if not kind and self.runs % 2:  # a person says how it ended
                way, ended = (("success", ENDS[0]), ("failed", ENDS[1]))[self.runs % 4 == 1]
                self.say(other, ended, {**grant, "reason": f"resolved as {way} by ann"}, at + runtime + 900.0)
            return at + runtime
        lost = rng.random() < 0.7
        if not lost:  # the holder says "failed" also when tries are left; any end may be run again
            kind, exit_code = rng.choices(TRIED, TRIED_WEIGHTS)[0]
            self.end(grant, node, other, at, runtime, kind, exit_code)
        elif rng.random() < 0.7:  # another node gives it up, and knows more or less about it
            unknown = rng.choice(({}, {"token": 0}, {"nonce": ""}, {"token": 0, "nonce": ""}))
            self.say(other, "task-retried", {**grant, **unknown, "reason": "lost"}, at + runtime + 12.0)
        if lost and rng.random() < 0.15:  # its owner lives, and tells its end much later
            more = {"runtime": runtime, "exit_code": rng.randrange(2)}
            self.say(node, rng.choice(ENDS), {**grant, **more}, at + runtime + 400.0)
        return at + runtime + rng.choice((-3.0, 0.2, 14.0))

    def end(
        self, grant: Record, node: Node, other: Node, at: float, runtime: float, kind: str, exit_code: int | None
    ) -> None:
        """Its end, as its own node tells it, and sometimes another one, too; or nobody."""
        if not kind:
            return
        rng = self.rng
        end = {**grant, "runtime": runtime if rng.random() < 0.9 else int(runtime), "exit_code": exit_code}
        if exit_code:
            end |= {"reason": f"exit code {exit_code}", "exception": rng.choice(TEXTS), "traceback": "  at Main"}
        if rng.random() < 0.7:
            end["application_id"] = f"app-{self.token}"
        self.say(node, kind, end, at + 0.04 + runtime)
        if rng.random() < 0.03:
            self.say(other, kind, {**end, "runtime": None, "nonce": ""}, at + runtime + rng.uniform(0.0, 200.0))

    def reject(self) -> None:
        """A run that was never launched."""
        word, reason = self.rng.choice(
            (
                ("missed", "late"),
                ("missed", "late" + HELD_BY_SUSPENSION),
                ("missed", f"late{HELD_BY_OTHERS}etl-01@1"),
                ("rejected", "overlap: it runs already"),
                ("", "breaker"),
            )
        )
        kind = self.rng.choice(("task-rejected", "task-rejected", "task-revoked"))
        self.say(self.rng.choice(self.nodes), kind, {**self.task(), "result": word, "reason": reason})

    def live(self) -> None:
        """Nodes come, go, beat, and set their clocks."""
        rng = self.rng
        node = rng.choice(self.nodes)
        what = rng.randrange(12)
        if what == 0:  # it comes back as another process, and at times with an older logical clock
            if rng.random() < 0.5:
                self.say(node, "worker-offline", {"freq": 2.0})
            node.pid += 100
            node.life += 1
            node.seq = 0
            node.clock = rng.choice((node.clock, node.clock // 2))
        if what < 2:
            tags = rng.choice(({}, {"tags": ["gpu"]}, {"tags": ["gpu", "Grüße"]}))
            version = rng.choice(({}, {"sw_ver": "0.9.0", "sw_sys": "Linux"}))
            self.say(node, "worker-online", {"freq": 2.0, **version, **tags})
        elif what == 2:
            node.offset -= rng.choice((0.3, 5.0, 60.0, 3600.0))
        elif what == 3:
            node.offset = rng.uniform(-0.2, 0.2)
        elif what == 4:
            self.say(node, "job-late", {"job": rng.choice(JOBS), "since": self.now})
        elif what == 5:
            self.trip()
        elif what < 8:
            self.say(node, "control", {"method": "run.trigger", "n": self.made, "run": f"etl-00#{self.runs:x}"})
        else:
            for each in self.nodes:
                self.say(each, "worker-heartbeat", {"freq": 2.0, "active": 1, "loadavg": [0.5, 0.4, 0.3]})

    def trip(self) -> None:
        """A breaker opens, is tried and closes. All nodes tell of a job's, some not of everything; of its own one."""
        rng, node = self.rng, self.rng.choice(self.nodes)
        name = rng.choice((f"job:{rng.choice(JOBS)}", f"job:{rng.choice(JOBS)}", "bus", "ledger", "service:probe"))
        told_by = [each for each in self.nodes if rng.random() < 0.8] if name.startswith("job:") else [node]
        states = [("open", self.now)]
        for _ in range(rng.choice((0, 0, 1, 2))):
            states += [("half_open", self.now + 5.0 * len(states)), ("open", self.now + 5.0 * len(states) + 2.0)]
        if rng.random() < 0.3:
            states = [("isolated", rng.choice((self.now, 1e300, 0.0)))]
        if rng.random() < 0.8:
            states.append(("closed", states[-1][1]))
        for each in told_by:
            for trips, (state, since) in enumerate(states):
                told = {"trips": trips} if trips else {}  # the default is left out
                self.say(each, "breaker-changed", {"breaker": name, "state": state, "since": since, **told})

    def wild(self) -> None:
        """Any field on any type, equal clocks, equal times, attempts in any order; see ``disorder``."""
        rng = self.rng
        token = self.token
        self.token += 100
        shift = self.now - DAY
        for record in disorder(rng.getrandbits(32), WILD, WILD_RUNS):
            run = f"wild@{self.made}-{record['uuid']}"
            record |= {"uuid": run_uuid(run), "run": run, "timestamp": record["timestamp"] + shift}
            if "token" in record:
                record["token"] += token
            if rng.random() < 0.2:
                record["fire_at"] = self.now
            self._lines.append((rng.randrange(len(self.nodes)), encode_line(record)))

    def no_event(self) -> None:
        """A whole line that is not a node's record."""
        good: Record = {"type": "task-started", "hostname": "edge-1", "clock": 1, "timestamp": self.now, "uuid": "u"}
        record: dict[str, Any] = {**good, **self.rng.choice(NO_EVENTS)}
        self._lines.append((self.rng.randrange(len(self.nodes)), encode_line(record)))


ENDS = ("task-succeeded", "task-failed", "task-revoked", "task-retried")

# How runs end, with the exit code; "": nobody tells.
FINAL = (("task-succeeded", 0), ("task-failed", 1), ("task-failed", None), ("task-revoked", 143), ("", None))
FINAL_WEIGHTS = (76, 10, 2, 6, 6)

# How attempts end that are followed by another one.
TRIED = (("task-failed", 1), ("task-retried", 1), ("task-succeeded", 0), ("task-revoked", 143))
TRIED_WEIGHTS = (5, 3, 2, 1)
