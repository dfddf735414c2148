"""Copies files to the configured sinks: one at a time for each sink, tried again with growing pauses, then given up.

The files follow from the disk: each log whose attempt is over, and each closed segment. A list of them is
kept, so an attempt that ended while the daemon was down is copied by the next one, and nothing is copied twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

import structlog
import trio

from coordd.config.sections import HistoryConfig
from coordd.core.ready import Notice
from coordd.core.visible import visible
from coordd.core.wire.events import CopyGivenUp, Event
from coordd.errors import CoorddError, RefusedError, UnavailableError
from coordd.ports import Copies, Copy, RemoteStore
from coordd.services.driver import Driver
from coordd.services.logs.files import log_path
from coordd.services.pace import turn
from coordd.services.runners import ENDS, Runners
from coordd.services.sinks.files import JOURNAL, LOG, SINKS, directories, files_of, local_paths, size_of, stored_as

log = structlog.get_logger("sinks")

# How often (seconds) the list of due copies is looked at, and the disk for files that are not on it.
LOOK_S = 1.0
SCAN_S = {LOG: 300.0, JOURNAL: 10.0}

# A log is copied this long (seconds) after its attempt has ended.
SETTLE_S = 1.0

# A copy that failed is tried again after this pause (seconds), which doubles up to the second value; after the last try
# it is given up. All tries together take about three hours.
PAUSE_S = 5.0
PAUSE_MAX_S = 600.0
TRIES_MAX = 24

# One copy takes no longer (seconds).
COPY_S = 120.0

# A copy is read within this time (seconds): a person waits.
READ_S = 12.0

# Copies of a sink that wait on the list. More stay on the disk, and come onto the list with a later scan.
WAITING_MAX = 10_000

# Dead letters in one answer.
LETTERS_MAX = 1000

Open = Callable[[str, Sequence[str], Sequence[str], str], RemoteStore]


class Sinks:
    """Both sinks of one daemon."""

    def __init__(self, driver: Driver, runners: Runners, copies: Copies, open_store: Open, state_dir: str) -> None:
        """``open_store``: makes the store of an address; with the commands, and a directory for files on their way."""
        self._driver = driver
        self._runners = runners
        self._copies = copies
        self._open_store = open_store
        self._state_dir = state_dir
        self._stores: dict[str, RemoteStore] = {}
        self._pauses: dict[str, float] = dict.fromkeys(SINKS, 0.0)  # the pause after the last failure, in seconds
        self._until: dict[str, float] = dict.fromkeys(SINKS, 0.0)
        self._scan_at: dict[str, float] = dict.fromkeys(SINKS, 0.0)
        self._threads = {sink: trio.CapacityLimiter(1) for sink in SINKS}
        self._reads = trio.CapacityLimiter(1)
        self._ended: list[str] = []  # logs of attempts that ended since the last look
        self.problems: dict[str, str] = {}  # why the last copy of a sink failed
        # How many were copied and failed since the start, how many wait now, and how many were given up.
        self.counts = {(sink, word): 0 for sink in SINKS for word in ("copied", "failed", "waiting", "dead")}
        driver.listeners.append(self._saw)

    def use(self, history: HistoryConfig) -> None:
        """The configuration was read, or read again."""
        urls = {"log": history.log_sink, "journal": history.journal_sink}
        spool = os.path.join(self._state_dir, "sinks")
        self._stores = {
            sink: self._open_store(url, history.sink_put, history.sink_get, spool) for sink, url in urls.items() if url
        }
        for sink in SINKS:
            self._pauses[sink] = self._until[sink] = self._scan_at[sink] = 0.0
        self.problems = {}

    async def run(self) -> None:
        """Copy, for ever."""
        try:
            async with trio.open_nursery() as nursery:
                for sink in SINKS:
                    nursery.start_soon(self._serve, sink)
        finally:
            self._copies.close()

    def _saw(self, journal: Sequence[Event], _notices: Sequence[Notice]) -> None:
        """This node's attempts that end."""
        if LOG in self._stores:
            own = self._driver.node.hostname
            ends = [one for one in journal if isinstance(one, ENDS) and one.node.rpartition(".")[0] == own]
            self._ended += [self._name(one.run, one.attempt) for one in ends]
            del self._ended[:-WAITING_MAX]  # a scan finds the others

    async def _serve(self, sink: str) -> None:
        while True:
            store = self._stores.get(sink)
            if store is not None:
                try:
                    await self._look(sink)
                    while store is self._stores.get(sink) and await self._copy_one(sink, store):
                        pass
                except UnavailableError as exc:  # the list; the next look tries again
                    self._problem(sink, str(exc))
                except Exception as exc:
                    # The boundary of one sink.
                    if not self.problems.get(sink):
                        log.exception("sink.broken", sink=sink)
                    self._problem(sink, f"the sink failed: {type(exc).__name__}")
            await turn(LOOK_S)

    # ---- what is to be copied

    async def _look(self, sink: str) -> None:
        """Put what is new on the disk onto the list: logs that just ended, and now and then everything."""
        now = trio.current_time()
        if sink == LOG and self._ended:
            ended = list(self._ended)
            await trio.to_thread.run_sync(self._note, sink, ended)
            del self._ended[: len(ended)]  # they are on the list now
        if now >= self._scan_at[sink]:
            await trio.to_thread.run_sync(self._scan, sink, self._live())
            # A launch meanwhile made a log that is on the list now. Nothing is copied before this line.
            await trio.to_thread.run_sync(self._copies.drop, sink, list(self._live()))
            self._scan_at[sink] = now + SCAN_S[sink]
            await self._count(sink)

    def _live(self) -> set[str]:
        """The logs of attempts that are not over."""
        launches = [handle.launch for handle in self._runners.runners.values() if not handle.ended]
        return {self._name(launch.run, launch.attempt) for launch in launches}

    def _name(self, run: str, attempt: int) -> str:
        return log_path("logs", run, attempt)

    def _scan(self, sink: str, live: set[str]) -> None:
        """Compare the disk with the list, one directory after the other; in a thread."""
        for directory in directories(self._state_dir, sink):
            names = [name for name in files_of(self._state_dir, sink, directory) if name not in live]
            known = self._copies.below(sink, directory)
            self._note(sink, names, known)
            there = set(names)
            gone = [one.name for one in known.values() if one.state == "copied" and one.name not in there]
            self._copies.drop(sink, gone)

    def _note(self, sink: str, names: Sequence[str], known: Mapping[str, Copy] | None = None) -> None:
        """Put files onto the list, unless they are on it or were copied as they are; in a thread."""
        wall, fresh = time.time(), []
        for name in names:
            one = known.get(name) if known is not None else self._copies.get(sink, name)
            size = size_of(self._state_dir, name)
            if size >= 0 and (one is None or (one.state == "copied" and one.size != size)):
                fresh.append(Copy(sink, name, next_at=wall + SETTLE_S, at=wall))
        if fresh:
            room = WAITING_MAX - self._copies.counts().get((sink, "waiting"), 0)
            self._copies.put(fresh[: max(0, room)])

    async def _count(self, sink: str) -> None:
        found = await trio.to_thread.run_sync(self._copies.counts)
        for word in ("waiting", "dead"):
            self.counts[sink, word] = found.get((sink, word), 0)

    # ---- one copy

    async def _copy_one(self, sink: str, store: RemoteStore) -> bool:
        """Make the copy that is due first; False if none is, or the store has a pause."""
        if trio.current_time() < self._until[sink]:
            return False
        one = await trio.to_thread.run_sync(self._copies.due, sink, time.time())
        if one is None:
            return False
        paths = local_paths(self._state_dir, one.name)
        try:
            name = self._address(await trio.to_thread.run_sync(stored_as, one.name, paths))
            with trio.move_on_after(COPY_S + 10.0):
                size = await trio.to_thread.run_sync(
                    store.put, name, paths, COPY_S, limiter=self._threads[sink], abandon_on_cancel=True
                )
                await self._copied(one, size)
                return True
            raise UnavailableError(f"{store.url} hangs: a copy did not end within {COPY_S:g} s")
        except (UnavailableError, RefusedError) as exc:
            await self._failed(one, exc)
        except Exception as exc:
            # The boundary of one copy: whatever a store raises must not end the daemon. It is tried again, as others.
            log.exception("sink.broken", sink=sink, name=one.name)
            await self._failed(one, UnavailableError(f"{store.url}: {type(exc).__name__}: {exc}"))
        return False

    def _address(self, name: str) -> str:
        node = self._driver.node
        return f"{node.settings.cluster}/{node.hostname}/{name}"

    async def _copied(self, one: Copy, size: int) -> None:
        self.counts[one.sink, "copied"] += 1
        self._pauses[one.sink] = 0.0
        if self.problems.pop(one.sink, ""):
            log.info("sink.works_again", sink=one.sink)
        await trio.to_thread.run_sync(self._copies.put, [one._replace(state="copied", size=size, reason="")])
        await self._count(one.sink)

    async def _failed(self, one: Copy, exc: CoorddError) -> None:
        tries, why = one.tries + 1, visible(str(exc))  # a server's words, which a database may refuse
        final = isinstance(exc, RefusedError) or tries >= TRIES_MAX
        self._problem(one.sink, why)
        self.counts[one.sink, "failed"] += 1
        if not isinstance(exc, RefusedError):  # perhaps the store is away: the next file waits, too
            self._pauses[one.sink] = min(max(PAUSE_S, 2 * self._pauses[one.sink]), PAUSE_MAX_S)
            self._until[one.sink] = trio.current_time() + self._pauses[one.sink]
        pause_s = min(PAUSE_S * 2.0 ** min(tries - 1, 16), PAUSE_MAX_S)
        after = one._replace(
            state="dead" if final else "waiting", tries=tries, next_at=time.time() + pause_s, reason=why[:500]
        )
        await trio.to_thread.run_sync(self._copies.put, [after])
        await self._count(one.sink)
        if final:
            log.error("copy.given_up", sink=one.sink, name=one.name, tries=tries, reason=why)
            node = self._driver.node
            clock, wall = node.stamp(), time.time()
            told = CopyGivenUp(clock=clock, timestamp=wall, sink=one.sink, name=one.name, tries=tries, reason=why)
            self._driver.tell(told)

    def _problem(self, sink: str, why: str) -> None:
        if not self.problems.get(sink):
            log.warning("sink.failed", sink=sink, reason=why)
        self.problems[sink] = why

    # ---- for people

    async def letters(self) -> list[Copy]:
        """The copies that were given up, newest first. Raises UnavailableError."""
        return await trio.to_thread.run_sync(self._copies.dead, LETTERS_MAX)

    async def letter(self, sink: str, name: str) -> Copy:
        """One of them. Raises RefusedError or UnavailableError."""
        one = await trio.to_thread.run_sync(self._copies.get, sink, name)
        if one is None or one.state != "dead":
            raise RefusedError(
                f"sink:{sink}:{name} is not a dead letter of this node",
                kind="unknown_run",
                hint="coordctl deadletter list shows those of the node that it asks",
            )
        return one

    async def replay(self, one: Copy) -> None:
        """Try it again, at once. Raises RefusedError if its file is gone."""
        if size_of(self._state_dir, one.name) < 0:
            raise RefusedError(f"{one.name} is gone: there is nothing to copy any more", kind="gone")
        await trio.to_thread.run_sync(self._copies.put, [one._replace(state="waiting", tries=0, next_at=0.0)])
        self._until[one.sink] = self._pauses[one.sink] = 0.0

    async def discard(self, one: Copy) -> None:
        """Nobody needs it: it counts as copied, as it is now."""
        size = size_of(self._state_dir, one.name)
        await trio.to_thread.run_sync(self._copies.put, [one._replace(state="copied", size=size)])
        await self._count(one.sink)

    async def end(self, host: str, run: str, attempt: int, limit: int) -> tuple[str, bytes]:
        """The last bytes of the copy of an attempt's log, and where it is. ``host``: the node of the attempt.

        Raises RefusedError (there is none) or UnavailableError.
        """
        store = self._stores.get(LOG)
        if store is None:
            raise RefusedError("no [history] log_sink is configured", kind="no_copy")
        name = f"{self._driver.node.settings.cluster}/{host}/{self._name(run, attempt)}"
        with trio.move_on_after(READ_S + 1.0):
            data = await trio.to_thread.run_sync(
                store.end, name, limit, READ_S, limiter=self._reads, abandon_on_cancel=True
            )
            return f"{store.url}: {name}", data
        raise UnavailableError(f"{store.url} did not answer within {READ_S:g} s")
