"""The control socket: bytes on the stream, in pieces, against the real framing, the real methods and a real ledger.

The first two bytes of an input say who asks (ROLES) and how the rest is cut into pieces.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest.mock import patch

import trio
from support.memory import MemoryExchange
from support.small_cluster import SETTINGS, job

from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.config.sections import Config
from coordd.core.jobs.job import Command, SparkSubmit
from coordd.core.ledger.words import Policy
from coordd.core.node.node import Node
from coordd.core.ready import LedgerRequest
from coordd.launching import LaunchBuilder
from coordd.services import driver as driver_module
from coordd.services.control.callers import ADMIN, OPERATOR, VIEWER, Caller
from coordd.services.control.methods import UNAVAILABLE_METHODS, Methods
from coordd.services.control.rpc import INTERNAL_ERROR, LINE_BYTES_MAX, RpcError, parse
from coordd.services.control.server import Connection, ControlServer
from coordd.services.driver import Driver, Keeper
from coordd.services.ledger import LedgerService, Result
from coordd.services.views.troubles import Troubles
from fuzz.bus import Paper
from fuzz.mutate import Pool, distort, pick
from fuzz.trial import Try, check, scratch

ROLES = (ADMIN, OPERATOR, VIEWER)

# A long input is made here from a short one, so that a failing input is still readable.
HUGE = b"<huge>"
DEEP = b"<deep>"

# Virtual seconds until an endless stream is closed.
PATIENCE_S = 40.0

JOBS = (
    job("sales", launch=Command(argv=("/bin/echo", "{day}")), params={"day": "1"}, owner="data"),
    job("spark", launch=SparkSubmit(application="/opt/a.py", args=("--day", "{date}"))),
    job("tick", every_s=3600.0),
)

# An attempt that `coordd exec` holds, or not.
HELD = {"run": "j#x", "attempt": 0, "token": 1, "nonce": "0" * 32, "lease": 60.0, "fire_at": 1.0}
HELD["policy"] = Policy().pack()

# One good request of every method, with all its parameters.
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ping", {}), ("status", {}), ("node.list", {}), ("node.drain", {"node": "a"}), ("node.resume", {"node": "a"}),
    ("job.list", {}), ("job.show", {"job": "sales"}), ("job.next", {"name": "tick", "count": 3}),
    ("job.fires", {"name": "tick", "from": 1.5, "to": "2030-01-01T00:00Z"}),
    ("job.suspend", {"job": "sales"}), ("job.resume", {"job": "sales"}),
    ("run.list", {"job": "sales", "state": "pending", "limit": 5}), ("run.show", {"id": "sales#1"}),
    ("run.trigger", {"job": "sales", "id": "1", "args": {"day": "2"}}),
    ("run.trigger", {"job": "spark", "args": {"n": 1}, "dry_run": True}), ("run.cancel", {"id": "sales#1"}),
    ("run.revoke", {"id": "tick@2026-10-03T02:00:00Z"}), ("run.resolve", {"id": "sales#1", "as": "success"}),
    ("run.rerun", {"id": "sales#1", "with_children": True, "note": "x"}),
    ("run.logs", {"id": "sales#1", "attempt": 0, "bytes": 100, "follow": True}), ("why", {"id": "sales#1"}),
    ("why", {"job": "tick"}), ("election.list", {"limit": 3}),
    ("election.open", {"id": "d1", "topic": "drill", "action": {"job": "x"}}),
    ("election.open", {"id": "e1", "topic": "command", "action": {"job": "sales", "args": {"day": "3"}}}),
    ("breaker.list", {}), ("breaker.reset", {"name": "ledger"}),
    ("events.subscribe", {"types": ["task-sent"], "backlog": 5, "follow": False}), ("events.subscribe", {"backlog": 1}),
    ("doctor", {}), ("reload", {}), ("audit", {"since": 5, "limit": 3}), ("ledger.status", {}), ("ledger.export", {}),
    ("ledger.import", {"rows": [{"kind": "job", "job": "sales"}], "replace": False, "more": True}),
    ("ledger.import", {"rows": [], "replace": True, "import": "0" * 16}), ("ledger.accept_epoch", {}),
    ("deadletter.list", {}),
    *[
        ("exec", {"job": "j", "how": how, "what": what, "nonce": "0" * 32, "attempt": 0, "lease": 60.0, **more})
        for how, what, more in (
            ("lock", "", {"wait": True}), ("id", "x", {}), ("every", "5m", {"ident": "2026-10-03T02:00:00Z"}),
            ("tick", "0 2 * * *", {"timezone": "Europe/Berlin"}),
        )
    ],
    *[
        (f"exec.{step}", {**HELD, **more})
        for step, more in (
            ("gate", {}), ("renew", {"launched": True}), ("restore", {"state": "started"}),
            ("report", {"state": "success", "exit_code": 0, "reason": "r"}),
        )
    ],
)  # fmt: skip


class Stream:
    """What a Connection needs of a trio.SocketStream: pieces come in, answers are kept."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self.answers = bytearray()

    async def receive_some(self, _most: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return self._pieces.pop(0) if self._pieces else b""

    async def send_all(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.answers += data


class PromptLedger(LedgerService):
    """Without threads: a million inputs need not wait for them."""

    async def query(self, call: Any, *, whose: str = "") -> Any:
        await trio.lowlevel.checkpoint()
        return self._read(self._readers[whose or False], call)

    async def _ask_under(self, permit: int, batch: list[LedgerRequest]) -> list[Result]:
        results: list[Result] = []
        self._judge(permit, self._perform(batch, results))
        return results


class World:
    """One daemon's inside, less its sockets."""

    def __init__(self, root: str) -> None:
        node = Node(hostname="a", pid=1, incarnation="1-a", settings=SETTINGS, clock_mark=0, rng=random.Random(1))
        self.service = PromptLedger(lambda: SqliteLedger(f"sqlite:///{root}/ledger.db"), 2.0)
        exchange = MemoryExchange()
        self.driver = Driver(
            node,
            bus=exchange.bus("a.1"),
            ledger=self.service,
            journal=Paper(),
            keeper=Keeper(lambda _mark: None, lambda _of: None, lambda _run: None),
            launch=lambda _launch: None,
            cancel=lambda _run, _reason: None,
        )
        node.topics.add("drill")
        node.set_jobs({one.name: one for one in JOBS}, self.driver.now())
        builder = LaunchBuilder(Config(), node, lambda *_: root, cast(Any, None))
        self.methods = Methods(
            self.driver,
            self.service,
            Troubles(self.driver, self.service),
            ledger_url=f"sqlite:///{root}/ledger.db",
            started_at=0.0,
            log_dir=root,
            job_problems=lambda: {"bad": ["bad.toml: it is not TOML"]},
            reload=lambda _no_jobs: {"jobs": 3},
            argv=builder.argv,
            doctor=list,
            audit=lambda _since, _limit: {"records": [], "chain": {}},
        )
        self.server = ControlServer(
            f"{root}/sock", self.methods.table(), operator_group="ops", viewer_group="", unavailable=UNAVAILABLE_METHODS
        )
        self.changes = 0
        self._journal_control = self.driver.journal_control
        self.driver.journal_control = self._changed  # type: ignore[method-assign]  # replaced for this test

    def _changed(self, *what: Any, **more: Any) -> None:
        self.changes += 1
        self._journal_control(*what, **more)

    async def attempt(self, data: bytes) -> str:
        """One connection."""
        role, cut = (ROLES[data[0] % len(ROLES)], data[1]) if len(data) > 1 else (VIEWER, 0)
        stream_bytes = data[2:].replace(HUGE, b"x" * LINE_BYTES_MAX).replace(DEEP, b'{"a":' * 3000)
        stream = Stream(pieces_of(stream_bytes, cut))
        caller = Caller(1000, frozenset(("staff",)), role, 1, "someone")
        before = self.changes
        with trio.move_on_after(PATIENCE_S):
            await Connection(self.server, stream, caller).run()  # type: ignore[arg-type]  # a stand-in with what is asked of it
        check(role != VIEWER or self.changes == before, "who may only look has changed something")
        return self._judged(stream_bytes, stream.answers)

    def _judged(self, asked: bytes, said: bytearray) -> str:
        """Every request has one answer, a line that a client can read; a missing answer is a bug."""
        outcome = "nothing"
        answers = 0
        for line in bytes(said).splitlines():
            answer = json.loads(line)
            if "id" not in answer:
                continue  # of a stream
            answers += 1
            outcome = "accepted"
            if "error" in answer:
                outcome = answer["error"]["data"]["kind"]
                check(answer["error"]["code"] != INTERNAL_ERROR, answer["error"]["message"])
                check(isinstance(answer["error"]["message"], str) and answer["error"]["message"], "no reason is given")
        check(said.endswith(b"\n") or not said, "an answer without an end")
        due = answers_due(asked)
        check(answers == due, f"{due} answers were due, and {answers} came")
        return outcome


async def at_once(call: Any, *args: Any, **_: Any) -> Any:
    """In the place of a thread, for which virtual time would not wait."""
    await trio.lowlevel.checkpoint()
    return call(*args)


def pieces_of(data: bytes, cut: int) -> list[bytes]:
    """The bytes in pieces, as from a socket: at most 64 KiB each, or as small as ``cut`` says."""
    size = 65536 if cut > 60 or len(data) > 5_000 else 1 + cut
    return [data[at : at + size] for at in range(0, len(data), size)]


def answers_due(data: bytes) -> int:
    """The number of answers for a stream: one per line, except notifications; an endless line gets the last one."""
    due = 0
    *lines, rest = data.split(b"\n")
    for line in [*lines, rest]:
        if not line.strip():
            continue
        try:
            due += not parse(line).notification
        except RpcError as exc:
            due += 1
            if exc.kind == "too_large" and len(line) > LINE_BYTES_MAX + 65536:
                break  # given up on in the middle
    return due


class ControlTarget:
    """Framing, JSON-RPC, and every method with every parameter wrong."""

    name = "control"
    what = "the control socket: framing, JSON-RPC, every method"
    limit_s = 5.0

    def __init__(self) -> None:
        lines = [line(method, params) for method, params in REQUESTS]
        words = [
            *[f'"{method}"'.encode() for method, _ in REQUESTS],
            b'"params":',
            b'"id":',
            b"null",
            b"NaN",
            b"-Infinity",
            b"1e999",
            b'"\\ud800"',
            b"\n",
            b"\r\n",
            b"\n\n",
            b"[",
            b"{",
            b"]}",
            b'{"id":1,"method":"ping"}\n',
            DEEP,
        ]
        self._pool = Pool(lines, words, bytes_max=16 * 1024)

    def make(self, rng: random.Random) -> bytes:
        """Lines of bytes, or requests whose parameters are not what they should be."""
        head = rng.randbytes(2)
        if rng.random() < 0.3:
            return head + self._pool.make(rng)
        lines = []
        for _ in range(pick(rng, (1, 1, 1, 2, 3))):
            method, params = pick(rng, REQUESTS)
            if rng.random() < 0.9:
                params = distort(params, rng)
            lines.append(line(method, params, pick(rng, (1, "a", 1.5, None, 2**70))))
        if rng.random() < 0.002:
            lines.append(pick(rng, (HUGE, HUGE + b"\n", b'{"id":"' + HUGE + b'","method":"ping"}\n', DEEP + b"\n")))
        return head + b"".join(lines)

    @asynccontextmanager
    async def world(self) -> AsyncIterator[Try]:
        """A daemon's inside with an empty ledger, of which some runs are known."""
        with (
            scratch() as root,
            # The driver's time is trio's: it jumps when all wait.
            patch.object(driver_module, "boottime", trio.current_time),
            patch.object(trio.to_thread, "run_sync", at_once),
        ):
            world = World(root)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.service.run, world.driver.ledger_answers)
                nursery.start_soon(world.driver.run)
                await trio.lowlevel.checkpoint()
                world.driver.feed(world.driver.node.start, ())
                yield world.attempt
                nursery.cancel_scope.cancel()
            world.service.close()


def line(method: str, params: Any, ident: Any = 1) -> bytes:
    """A request; text that UTF-8 cannot encode is written with JSON's escapes."""
    return json.dumps({"id": ident, "method": method, "params": params}).encode() + b"\n"
