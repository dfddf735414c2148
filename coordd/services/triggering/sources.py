"""What a poller finds: the files that match a pattern."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import trio

from coordd.core.jobs.trigger import Trigger
from coordd.core.triggers.arrivals import Arrival
from coordd.core.triggers.files import Found, Looks, Seen
from coordd.core.triggers.messages import Dead
from coordd.errors import UnavailableError
from coordd.ports import Files
from coordd.services.ledger import boottime

# How long a look at directories may take (seconds); a file system that hangs holds up only its own trigger.
LOOK_S = 30.0

# A file that is this much younger (seconds) than what the history forgets is too old to be taken: its run may have been
# forgotten, and would run again.
MARGIN_S = 86_400.0


class Look(NamedTuple):
    """``arrivals``: all that are there now, oldest first. ``refused``: (arrival, why it can start nothing).
    ``soon``: the next look may find more than this one, without a new arrival. ``problem``: what a person should know.
    ``behind``: arrivals that wait elsewhere, and are not among these. ``dead``: messages that were put aside, and the
    last ones of them.
    """

    arrivals: list[Arrival]
    refused: list[tuple[str, str]]
    soon: bool = False
    problem: str = ""
    behind: int = 0
    dead: int = 0
    dead_last: tuple[Dead, ...] = ()


Room = Callable[[], Awaitable[int]]


class Source:
    """What a poller looks at."""

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
            listing = await trio.to_thread.run_sync(
                self._files, self._trigger.path, limiter=self._thread, abandon_on_cancel=True
            )
            return self._judged(listing.found, listing.refused, more=listing.more)
        raise UnavailableError(f"{self._trigger.path}: the file system did not answer within {LOOK_S:g} s")

    def seen(self, path: str) -> Seen | None:
        return self._looks.seen(path)

    def _judged(self, found: Sequence[Found], refused: list[tuple[str, str]], *, more: bool) -> Look:
        settled = self._looks.look(found, boottime())
        oldest = (time.time() - self._keep_s() + MARGIN_S) * 1e9
        old = [file for file in settled if max(file.mtime_ns, file.ctime_ns) < oldest]
        refused += [(file.path, "older than [history] keep: its run may have been forgotten") for file in old[:100]]
        arrivals = [file.arrival() for file in settled if max(file.mtime_ns, file.ctime_ns) >= oldest]
        problem = "the directory has more entries than one look reads: move what is done elsewhere" if more else ""
        return Look(arrivals, refused, soon=bool(self._looks.unsettled), problem=problem)
