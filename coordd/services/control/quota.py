"""What each user of the machine may take of the control socket.

Anybody may connect, so nobody may take what others need: places, requests in flight, streams, memory. Each uid has
limits of its own, and those who may only look have limits together, for one person may have many uids. root and the
daemon's user are not limited; the places that are kept for them and for operators nobody else gets.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import trio

from coordd.services.control.rpc import LINE_BYTES_MAX


class Limits(NamedTuple):
    """How much at a time; ``line``, ``asked`` and ``answers`` in bytes."""

    connections: int
    in_flight: int  # requests that are being worked on; further ones wait
    streams: int
    line: int  # one request
    nested: int  # objects and lists in one request
    asked: int  # half lines, and requests that are not answered yet
    answers: int  # answers that are not read yet


# A person has a few terminals and a dashboard. A request of a viewer is under 1 KiB, a trigger by a job's owner
# carries 32 KiB of arguments. A list in JSON is two bytes, and fifty once it is parsed, in the loop: hence ``nested``.
# An answer is at most the list of all jobs.
VIEWER_LIMITS = Limits(
    connections=24, in_flight=16, streams=8, line=64 * 1024, nested=1000, asked=512 * 1024, answers=8 * 2**20
)
ALL_VIEWERS_LIMITS = Limits(
    connections=128, in_flight=32, streams=32, line=64 * 1024, nested=1000, asked=2 * 2**20, answers=16 * 2**20
)

# Operators are trusted not to attack, but a script of theirs may have a mistake.
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
    """What one uid, or all viewers together, have taken."""

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
        # Small pieces for those who are limited: what has been read and is not asked for yet counts, too.
        self.read_bytes = 4096 if shares else 65536
        for share in shares:
            share.connections += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give everything back."""
        self.answered(self._asked)
        for share in self._shares:
            share.connections -= 1
        self._quotas.left(self._uid)

    async def begin(self) -> None:
        """Wait for a turn to be worked for."""
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
        """The work is done."""
        for share in self._shares:
            share.turn.release()

    def asks(self, count: int) -> str:
        """Hold these bytes of a request; why not, or ""."""
        for share in self._shares:
            if share.asked + count > share.limits.asked:
                return f"{share.who} sent {share.limits.asked} bytes of requests that are not answered yet"
        self._asked += count
        for share in self._shares:
            share.asked += count
        return ""

    def answered(self, count: int) -> None:
        """So many bytes of requests are done with."""
        self._asked -= count
        for share in self._shares:
            share.asked -= count

    def tells(self, count: int) -> str:
        """Hold an answer of this size; why not, or ""."""
        for share in self._shares:
            if share.answers + count > share.limits.answers:
                return f"{share.who} did not read the last {share.answers} bytes of answers yet"
        for share in self._shares:
            share.answers += count
        return ""

    def told(self, count: int) -> None:
        """An answer was taken, or given up."""
        for share in self._shares:
            share.answers -= count

    def opens_stream(self) -> str:
        """Count one stream; why not, or ""."""
        for share in self._shares:
            if share.streams >= share.limits.streams:
                return f"{share.who} has {share.limits.streams} streams open already"
        for share in self._shares:
            share.streams += 1
        return ""

    def stream_ended(self) -> None:
        """One stream less."""
        for share in self._shares:
            share.streams -= 1


class Quotas:
    """All users' shares."""

    def __init__(self) -> None:
        self._users: dict[int, Share] = {}
        self._viewers = Share("those who may only look together", ALL_VIEWERS_LIMITS)

    def place(self, uid: int, name: str, *, limited: bool, looks: bool) -> Place | str:
        """A place for one more connection, or why there is none.

        ``limited``: the caller is not root or the daemon's user. ``looks``: the caller may only look.
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
        """A connection of that uid is closed."""
        share = self._users.get(uid)
        if share is not None and share.connections <= 0:
            del self._users[uid]
