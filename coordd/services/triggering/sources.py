"""What a poller finds: the files that match a pattern."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence, Set as AbstractSet
from typing import NamedTuple

import trio

from coordd.core.jobs.trigger import Trigger
from coordd.core.triggers.arrivals import Arrival
from coordd.core.triggers.files import MARGIN_S, Looks, Seen
from coordd.core.triggers.messages import Dead
from coordd.errors import UnavailableError
from coordd.ports import Files
from coordd.services.ledger import boottime

# How long a look at directories may take (seconds); a file system that hangs holds up only its own trigger.
LOOK_S = 30.0

TOO_MANY = "the directory has more entries than one look reads: move what is done elsewhere"

# New arrivals that one look hands over; the others count as waiting.
HANDED_MAX = 20_000


class Known:
    """What the taker of a trigger knows: keys of arrivals."""

    def __init__(self, done: Sequence[Container[str]], every: AbstractSet[str]) -> None:
        """``done``: nothing is to be done for them any more: their runs are in the ledger, or they can start none.
        ``every``: these, and those whose runs are on this node's disk alone.
        """
        self._done = done
        self.every = every

    def __contains__(self, key: object) -> bool:
        """True if nothing is to be done for it."""
        return any(key in some for some in self._done)


class Look(NamedTuple):
    """``arrivals``: all that are there now, oldest first. ``refused``: (arrival, why it can start nothing).
    ``soon``: the next look may find more than this one, without a new arrival. ``problem``: what a person should know.
    ``behind``: arrivals that wait elsewhere, and are not among these. ``dead``: messages that were put aside, and the
    last ones of them. ``gone``: None, or keys that the taker knows and that are not there any more; then ``arrivals``
    lacks what is done.
    """

    arrivals: list[Arrival]
    refused: list[tuple[str, str]]
    soon: bool = False
    problem: str = ""
    behind: int = 0
    dead: int = 0
    dead_last: tuple[Dead, ...] = ()
    gone: AbstractSet[str] | None = None


Room = Callable[[], Awaitable[int]]


class Source:
    """What a poller looks at."""

    known: Known | None = None  # set before each look; None: hand over all arrivals

    async def look(self, room: Room) -> Look:
        """The arrivals that are there now. ``room``: how many may be taken; it asks the ledger.

        Raises UnavailableError.
        """
        raise NotImplementedError

    async def settle(self, recorded: Collection[str], impossible: Mapping[str, str]) -> bool:
        """After a look: the keys of arrivals whose runs are in the ledger, and of those that can start none, with the
        reason. True if another look would find more at once. Raises UnavailableError.
        """
        return False

    async def close(self) -> None:
        """Another node looks now. Raises nothing."""

    def seen(self, path: str) -> Seen | None:
        """A file of the last look, if this source looks for files."""
        return None


class FileSource(Source):
    """Files that match a pattern."""

    def __init__(self, trigger: Trigger, files: Files, keep_s: Callable[[], float]) -> None:
        """``keep_s``: how long the ledger remembers runs."""
        self._trigger = trigger
        self._files = files
        self._keep_s = keep_s
        self._looks = Looks(trigger.settle_s)
        self._thread = trio.CapacityLimiter(1)

    async def look(self, _room: Room | None = None) -> Look:
        with trio.move_on_after(LOOK_S):
            return await trio.to_thread.run_sync(self._look, self.known, limiter=self._thread, abandon_on_cancel=True)
        raise UnavailableError(f"{self._trigger.path}: the file system did not answer within {LOOK_S:g} s")

    def seen(self, path: str) -> Seen | None:
        return self._looks.seen(path)

    def _look(self, known: Known | None) -> Look:
        """In the thread, also the judgement: 200,000 files would hold the daemon's loop for seconds."""
        listing = self._files(self._trigger.path)
        settled = self._looks.look(listing.found, boottime())
        oldest = (time.time() - self._keep_s() + MARGIN_S) * 1e9
        old = [file for file in settled if max(file.mtime_ns, file.ctime_ns) < oldest]
        refused = listing.refused + [
            (file.path, "older than [history] keep: its run may have been forgotten") for file in old[:100]
        ]
        young = [file for file in settled if max(file.mtime_ns, file.ctime_ns) >= oldest]
        problem = TOO_MANY if listing.more else ""
        soon = bool(self._looks.unsettled)
        if known is None:
            return Look([file.arrival() for file in young], refused, soon=soon, problem=problem)
        present = {file.key: file for file in young}
        new = [file for key, file in present.items() if key not in known]
        arrivals = [file.arrival() for file in new[:HANDED_MAX]]
        behind = max(0, len(new) - HANDED_MAX)
        return Look(arrivals, refused, soon=soon, problem=problem, behind=behind, gone=known.every - present.keys())
