"""A world's ledger with the real Redis scripts: it has a private server, and the scripts read the world's clock.

This ledger records each executed operation together with its clock. So the ledger can go back as a real ledger does:
it deletes everything, then repeats the operations up to the chosen time, each under its recorded clock. After that its
scripts find another replication id.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import msgpack
from support.stepped_redis import rewritten

from coordd.adapters.ledger.redis_ledger import RedisLedger, answer_of
from coordd.adapters.ledger.redis_rows import row_of
from coordd.adapters.ledger.redis_scripts import Scripts, packed
from coordd.adapters.ledger.resp import Problem
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.fires import Decided
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import AcceptEpoch
from coordd.core.ledger.rows import RUN_COLUMNS, Hold, JobRow, LedgerTime, Row
from coordd.core.ledger.runner_requests import Request
from simulator.terms import LAG_S, LEASE

# Reads all rows in one round trip, each as one text: what has not changed since is not decoded again.
ROWS = """
local rows = {}
for _, run in ipairs(redis.call('ZREVRANGE', KEYS[1], 0, -1)) do
  rows[#rows + 1] = cmsgpack.pack(redis.call('HMGET', ARGV[1] .. run, unpack(ARGV, 2)))
end
return rows
"""

# Number of commands that are repeated in one round trip.
AT_A_TIME = 100

A = TypeVar("A", bound=Answer | OpenAnswer)

# After the ledger went back, the scripts find this replication id beside the rows. Their server has another id.
ANOTHER_SERVER = "of another server"


class ScriptedLedger:
    """The methods that a world calls on a ledger: those of ``MemoryLedger``, and ``goes_back``."""

    def __init__(self, url: str, clock: Callable[[], LedgerTime], scripts: Scripts | None = None) -> None:
        self._clock = clock
        self._redis = RedisLedger(
            url,
            5.0,
            cluster=f"world-{uuid.uuid4().hex}",
            quarantine_s=LEASE + LAG_S,
            short_quarantine_s=LEASE + LAG_S,
            scripts=scripts or Scripts(rewritten),
        )
        self._rows: dict[bytes, Row] = {}  # those of the last look, by their texts
        self._left: dict[str, Row] | None = None  # its rows when it was closed
        self._left_fires: dict[str, Decided] = {}
        self._left_marks: dict[str, Hold] = {}
        self._done: list[tuple[float, list[Any], list[Any]]] = []  # (when, command that sets the clock, operation)
        self.step(AcceptEpoch(), "", 0.0)

    def step(self, request: Request[Any], run: str, at: float) -> tuple[Row | None, Any, Row | None]:
        """Execute one operation at that time of the world.

        Returns the run's row before the operation, the answer, and the run's row after the operation.
        """
        stamp, script = self._stamp(), self._redis.script(request.op, packed(request))
        look = ["HMGET", self._redis.key(f"run:{run}"), *RUN_COLUMNS]
        before, reply, after = self._executed(request, stamp, [look, script, look])
        self._done.append((at, stamp, script))
        return row_of(before), answer_of(reply), row_of(after)

    def ask(self, request: Request[A]) -> A:
        """The answer to an operation that only reads: it is not repeated when the ledger goes back."""
        script = self._redis.script(request.op, packed(request))
        _, reply, _ = self._executed(request, self._stamp(), [["PING"], script, ["PING"]])
        return cast(A, answer_of(reply))

    def _executed(self, request: Request[Any], stamp: list[Any], commands: list[list[Any]]) -> tuple[Any, Any, Any]:
        """The replies to three commands, of which the second is the script of ``request``."""
        _, before, reply, after = self._redis.read([stamp, *commands], refused=True)
        if isinstance(reply, Problem) and reply.word == "NOSCRIPT":
            self._redis.read([self._redis.bring(request.op)])
            reply, after = self._redis.read(commands[1:], refused=True)
        if isinstance(reply, Problem):
            raise RuntimeError(f"{request}: {reply.text}")  # noqa: TRY004  # a defect of a script, not of a type
        return before, reply, after

    def run(self, run: str) -> Row | None:
        return self._redis.run(run) if self._left is None else self._left.get(run)

    def recorded(self, runs: Sequence[str]) -> set[str]:
        return self._redis.recorded(runs) if self._left is None else self._left.keys() & runs

    def runs(self, *, job: str = "", state: str = "", limit: int = 100) -> list[Row]:
        rows = self._all() if self._left is None else self._left.values()
        return [row for row in rows if job in ("", row.job) and state in ("", row.state)][:limit]

    def _all(self) -> Iterable[Row]:
        """Every run, newest first. Nobody changes a row that was read."""
        key, each = self._redis.key("list::"), self._redis.key("run:")
        (texts,) = self._redis.read([["EVAL", ROWS, 1, key, each, *RUN_COLUMNS]])
        rows = {text: self._rows.get(text) or row_of(_values(text)) for text in texts}
        self._rows = {text: row for text, row in rows.items() if row is not None}
        return self._rows.values()

    def job(self, name: str) -> JobRow | None:
        """One job's row, with only the columns that a world reads."""
        columns = ("horizon", "suspended", "digest", "counts_from")
        found = self._redis.read(
            [("HMGET", self._redis.key(f"{kind}:{name}"), *columns) for kind in ("standing", "job")]
        )
        for horizon, suspended, digest, counts_from in found:  # an older version kept them in the job's own row
            if horizon is not None:
                return JobRow(
                    name,
                    horizon=float(horizon),
                    suspended=int(suspended),
                    digest=(digest or b"").decode(),
                    counts_from=float(counts_from or 0.0),
                )
        return None

    def fires(self, job: str) -> Decided:
        """The record of a job's fire times without a row."""
        return self._redis.fires(job) if self._left is None else self._left_fires.get(job, Decided(0.0, [], []))

    def marks(self, prefix: str) -> dict[str, Hold]:
        """The holds and marks whose keys begin so."""
        kept = self._redis.marks("") if self._left is None else self._left_marks
        return {key: hold for key, hold in kept.items() if key.startswith(prefix)}

    def goes_back(self, to: float, *, replicated: bool) -> None:
        """Forget the operations after that time of the world. With 0.0, forget everything. ``replicated``: there is a
        replica.
        """
        self._clear()
        if to == 0.0:
            self._done.clear()
            return
        while self._done and self._done[-1][0] > to:
            self._done.pop()
        commands = [command for _, stamp, done in self._done for command in (stamp, done)]
        for begin in range(0, len(commands), AT_A_TIME):
            self._redis.read(commands[begin : begin + AT_A_TIME])
        another = ["HSET", self._redis.key("meta"), "epoch", ANOTHER_SERVER]
        if replicated:
            (life,) = self._redis.read([("HGET", self._redis.key("meta"), "mark")])
            another += ["replicated", life]
        self._done.append((to, self._stamp(), another))
        self._redis.read([another])

    def close(self) -> None:
        """Delete all its data from the server. Its last rows can still be read from this object."""
        self._left = {row.run: row for row in self._all()}
        self._left_fires = {job: self._redis.fires(job) for job in {row.job for row in self._left.values()}}
        self._left_marks = self._redis.marks("")
        self._clear()
        self._redis.close()

    def _stamp(self) -> list[Any]:
        seconds, micros = divmod(round(self._clock().wall * 1e6), 1_000_000)
        return ["HSET", self._redis.key("clock"), "s", seconds, "us", micros]

    def _clear(self) -> None:
        (keys,) = self._redis.read([("KEYS", self._redis.prefix.replace("[", "\\[") + "*")])
        if keys:
            self._redis.read([("DEL", *keys)])


def _values(text: bytes) -> list[bytes | None]:
    """A row's columns; Lua has false for an absent one."""
    return [None if value is False else value for value in msgpack.unpackb(text, raw=True)]
