"""What a poller finds: the files that match a pattern, the ids that a command prints."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import trio

from coordd.core.jobs.arguments import control_character
from coordd.core.jobs.trigger import Trigger
from coordd.core.triggers.arrivals import Arrival
from coordd.core.triggers.files import Found, Looks
from coordd.core.triggers.messages import Dead
from coordd.core.visible import visible
from coordd.errors import UnavailableError
from coordd.ports import Files
from coordd.services.ledger import boottime

# How long a look at directories may take (seconds); a file system that hangs holds up only its own trigger.
LOOK_S = 30.0

# What a command may print: bytes, ids, and bytes of one id.
OUTPUT_BYTES_MAX = 4 * 1024 * 1024
IDS_MAX = 20_000
ID_BYTES_MAX = 1024

# How much of a command's standard error is shown (bytes).
ERROR_BYTES_MAX = 300

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

    def _judged(self, found: Sequence[Found], refused: list[tuple[str, str]], *, more: bool) -> Look:
        settled = self._looks.look(found, boottime())
        oldest = (time.time() - self._keep_s() + MARGIN_S) * 1e9
        old = [file for file in settled if max(file.mtime_ns, file.ctime_ns) < oldest]
        refused += [(file.path, "older than [history] keep: its run may have been forgotten") for file in old[:100]]
        arrivals = [file.arrival() for file in settled if max(file.mtime_ns, file.ctime_ns) >= oldest]
        problem = "the directory has more entries than one look reads: move what is done elsewhere" if more else ""
        return Look(arrivals, refused, soon=bool(self._looks.unsettled), problem=problem)


class CommandSource(Source):
    """A command that prints one id a line; each id is one arrival."""

    def __init__(self, trigger: Trigger) -> None:
        self._trigger = trigger

    async def look(self, _room: Room | None = None) -> Look:
        with trio.move_on_after(self._trigger.timeout_s):
            return self._read(await self._printed())
        raise UnavailableError(f"{self._trigger.argv[0]} did not end within {self._trigger.timeout_s:g} s")

    async def _printed(self) -> bytes:
        argv, env = self._trigger.argv, {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
        try:
            process = await trio.lowlevel.open_process(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                start_new_session=True,
            )
        except OSError as exc:
            raise UnavailableError(f"{argv[0]} cannot be executed: {exc.strerror or exc}") from exc
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            said: list[bytes] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_read_into, process.stderr, ERROR_BYTES_MAX, said)
                output: list[bytes] = []
                await _read_into(process.stdout, OUTPUT_BYTES_MAX + 1, output)
                if sum(map(len, output)) > OUTPUT_BYTES_MAX:
                    raise UnavailableError(f"{argv[0]} printed more than {OUTPUT_BYTES_MAX} bytes: nothing was taken")
                await process.wait()
        except* UnavailableError as group:
            raise group.exceptions[0] from None
        finally:
            await _end(process)
        if process.returncode:
            why = visible(b"".join(said).decode(errors="replace").strip())
            raise UnavailableError(f"{argv[0]} ended with {process.returncode}: {why or 'it said nothing'}")
        return b"".join(output)

    def _read(self, output: bytes) -> Look:
        lines = list(dict.fromkeys(line.strip() for line in output.splitlines()))
        arrivals, refused = [], []
        for line in [line for line in lines if line][:IDS_MAX]:
            text = line.decode(errors="surrogateescape")
            bad = control_character(text)
            if len(line) > ID_BYTES_MAX:
                refused.append((text[:60], f"an id has at most {ID_BYTES_MAX} bytes"))
            elif bad:
                refused.append((visible(text)[:60], f"an id must not have the character {bad!r}"))
            else:
                arrivals.append(Arrival(text, {"key": text}))
        more = f"it printed more than {IDS_MAX} ids: the others wait" if len(lines) > IDS_MAX + 1 else ""
        return Look(arrivals, refused, problem=more)


async def _read_into(stream: trio.abc.ReceiveStream, most: int, said: list[bytes]) -> None:
    """Read to the end; what is above ``most`` bytes is dropped."""
    left = most
    async for data in stream:
        said.append(bytes(data[:left]))
        left -= len(said[-1])


async def _end(process: trio.Process) -> None:
    """Nothing of a command outlives the look: its whole group is killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with trio.CancelScope(shield=True):
        await process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                await stream.aclose()
