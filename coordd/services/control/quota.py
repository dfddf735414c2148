"""The limits of each user of the control socket.

Anybody may connect, so nobody may take the places, requests in flight, streams and memory that others need. Each uid
has its own limits. All viewers together have limits too, because one person may have many uids. root and the daemon's
user have no limits; some places are reserved for them and for operators.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Self

import trio

from coordd.services.control.rpc import LINE_BYTES_MAX


class Limits(NamedTuple):
    """The limits at any time; ``line``, ``asked`` and ``answers`` in bytes."""

    connections: int
    in_flight: int  # requests in work; further ones wait
    streams: int
    line: int  # one request
    nested: int  # objects and lists in one request
    asked: int  # partial lines, and requests without an answer yet
    answers: int  # answers that are not read yet


# What one uid without any right may write by `coordd exec`: runs in a period (seconds), and names while the daemon
# lives. A crontab line of every minute is one of each; nodes keep a token for each name, and the ledger a row.
RUNS_MAX = 120
RUNS_PERIOD_S = 60.0
NAMES_MAX = 100

# A person has a few terminals and a dashboard. A viewer's request is under 1 KiB; a trigger by a job's owner carries up
# to 32 KiB of arguments. A list in JSON is two bytes, and fifty once parsed, in the loop: therefore ``nested``. The
# largest answer is the list of all jobs.
VIEWER_LIMITS = Limits(
    connections=24, in_flight=16, streams=8, line=64 * 1024, nested=1000, asked=512 * 1024, answers=8 * 2**20
)
ALL_VIEWERS_LIMITS = Limits(
    connections=128, in_flight=32, streams=32, line=64 * 1024, nested=1000, asked=2 * 2**20, answers=16 * 2**20
)

# Operators do not attack, but their scripts may have mistakes.
OPERATOR_LIMITS = Limits(
    connections=64,
    in_flight=64,
    streams=32,
    line=LINE_BYTES_MAX,
    nested=LINE_BYTES_MAX,
    asked=8 * 2**20,
    answers=64 * 2**20,
)


class Share:
    """What one uid, or all viewers together, use now."""

    def __init__(self, who: str, limits: Limits) -> None:
        self.who = who
        self.limits = limits
        self.connections = self.streams = self.asked = self.answers = 0
        self.turn = trio.Semaphore(limits.in_flight)


class Place:
    """One connection's place; left with ``close``."""

    def __init__(self, quotas: Quotas, uid: int, shares: tuple[Share, ...]) -> None:
        self._quotas = quotas
        self._uid = uid
        self._shares = shares
        self._asked = 0
        self.line_max = min([LINE_BYTES_MAX, *[share.limits.line for share in shares]])
        self.nested_max = min([LINE_BYTES_MAX, *[share.limits.nested for share in shares]])
        # Limited callers are read in small pieces: bytes that were read but not counted yet use memory too.
        self.read_bytes = 4096 if shares else 65536
        for share in shares:
            share.connections += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release everything."""
        self.answered(self._asked)
        for share in self._shares:
            share.connections -= 1
        self._quotas.left(self._uid)

    async def begin(self) -> None:
        """Wait for a turn among the requests in work."""
        taken: list[Share] = []
        try:
            for share in self._shares:
                await share.turn.acquire()
                taken.append(share)
        except BaseException:
            for share in taken:
                share.turn.release()
            raise

    def end(self) -> None:
        """A request is finished."""
        for share in self._shares:
            share.turn.release()

    def asks(self, count: int) -> str:
        """Count these bytes of a request; returns why not, or ""."""
        for share in self._shares:
            if share.asked + count > share.limits.asked:
                return f"{share.who} sent {share.limits.asked} bytes of requests that are not answered yet"
        self._asked += count
        for share in self._shares:
            share.asked += count
        return ""

    def answered(self, count: int) -> None:
        """These bytes of requests are finished."""
        self._asked -= count
        for share in self._shares:
            share.asked -= count

    def tells(self, count: int) -> str:
        """Count an answer of this size; returns why not, or ""."""
        for share in self._shares:
            if share.answers + count > share.limits.answers:
                return f"{share.who} did not read the last {share.answers} bytes of answers yet"
        for share in self._shares:
            share.answers += count
        return ""

    def told(self, count: int) -> None:
        """An answer was read, or dropped."""
        for share in self._shares:
            share.answers -= count

    def opens_stream(self) -> str:
        """Count one stream; returns why not, or ""."""
        for share in self._shares:
            if share.streams >= share.limits.streams:
                return f"{share.who} has {share.limits.streams} streams open already"
        for share in self._shares:
            share.streams += 1
        return ""

    def stream_ended(self) -> None:
        """Uncount one stream."""
        for share in self._shares:
            share.streams -= 1


class Quotas:
    """The shares of all users."""

    def __init__(self) -> None:
        self._users: dict[int, Share] = {}
        self._viewers = Share("all viewers together", ALL_VIEWERS_LIMITS)

    def place(self, uid: int, name: str, *, limited: bool, looks: bool) -> Place | str:
        """A place for one more connection, or the reason for refusing it.

        ``limited``: the caller is not root or the daemon's user. ``looks``: the caller is a viewer.
        """
        if not limited:
            return Place(self, uid, ())
        limits = VIEWER_LIMITS if looks else OPERATOR_LIMITS
        share = self._users.get(uid) or Share(name, limits)
        shares = (share, self._viewers) if looks else (share,)
        for one in shares:
            if one.connections >= one.limits.connections:
                return f"{one.who} has {one.limits.connections} connections already"
        self._users[uid] = share
        return Place(self, uid, shares)

    def left(self, uid: int) -> None:
        """A connection of that uid was closed."""
        share = self._users.get(uid)
        if share is not None and share.connections <= 0:
            del self._users[uid]


class RunShares:
    """What users without any right may write into the ledger (`coordd exec`): rows and names stay for months."""

    def __init__(self) -> None:
        self._names: dict[int, set[str]] = {}
        self._written: dict[int, deque[float]] = {}

    def no_name(self, uid: int, name: str) -> str:
        """Why this uid may not claim runs of that name; "" if it may. The answer does not change by waiting."""
        names = self._names.get(uid, ())
        if name in names or len(names) < NAMES_MAX:
            return ""
        return f"{NAMES_MAX} names of this user are in use already"

    def full(self, uid: int, now: float, *, takeover: bool = False) -> str:
        """Why this uid may not claim a run now; "" if it may. A ``takeover`` writes no run."""
        written = self._written.get(uid)
        while written and written[0] <= now - RUNS_PERIOD_S:
            written.popleft()
        if written and len(written) >= RUNS_MAX and not takeover:
            return f"{RUNS_MAX} runs of this user in {RUNS_PERIOD_S:g} s already"
        return ""

    def asked(self, uid: int, name: str) -> None:
        """A run of that name was claimed: the ledger has a row of the name, whatever it answered."""
        self._names.setdefault(uid, set()).add(name)

    def wrote(self, uid: int, now: float) -> None:
        """A run was written."""
        self._written.setdefault(uid, deque()).append(now)
