"""The outbox: what must not be lost waits for the bus on the disk, in order, and leaves when it is back.

While the bus is there a message is published at once and held until the transport has confirmed it. What is not
confirmed, and all that comes while something waits, goes to the backlog; from there it leaves in order, in small
batches, and is removed when it is confirmed. A message may so arrive twice; whoever hears it drops the second one.

Only facts and hints of people wait here: that a run was started or has ended, that one was revoked. Whoever hears them
late merges them. Elections and heartbeats are never kept: late they would be wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import structlog
import trio

from coordd.errors import RemoteProtocolError, UnavailableError
from coordd.ports import Backlog, Message

log = structlog.get_logger("outbox")
T = TypeVar("T")

# The news of a run serves whoever watches it; after a day only histories ask for it, and they read the journals.
KEEP_FACTS_S = 86_400.0

# A command hurries along what the ledger has: after this long every node has asked the ledger itself.
KEEP_COMMANDS_S = 30.0

# While the disk does not take them, messages wait in memory, as many as a daemon can spare room for.
MEMORY_COUNT_MAX = 10_000
MEMORY_BYTES_MAX = 16 * 2**20

# Published and not confirmed yet; more than that means that the broker does not keep up.
IN_FLIGHT_MAX = 1000

# Messages that leave the backlog together. Small, so that a broker that has just come back is not flooded and what is
# sent twice after a failure is little.
REPLAY_BATCH = 64

# A confirmation that has not come after this long will not come: sent again.
CONFIRM_S = 10.0

# Messages that are written in one transaction.
SAVE_BATCH = 1000

# A disk that does not answer for this long has failed; it is tried again after the other time.
DISK_S = 5.0
DISK_RETRY_S = 5.0

# How often it is looked whether something may leave, or has waited for its confirmation for too long.
LOOK_S = 1.0

# Between two batches of which something was not confirmed; doubles up to the bound.
PAUSE_MIN_S = 0.5
PAUSE_MAX_S = 15.0

# Messages that have arrived and could not be removed from the disk: so many are remembered, not to be sent again.
ARRIVED_MAX = 10_000


class Outbox:
    """The outgoing messages of one node that must arrive."""

    def __init__(
        self,
        publish: Callable[[bytes, Callable[[bool], None]], None],
        backlog: Backlog | None,
        *,
        connected: bool = False,
        renew: Callable[[bytes], bytes] = lambda data: data,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``publish`` as in ports.Bus. ``renew`` puts what an earlier life of this node has left under its present
        name. Without a backlog everything waits in memory."""
        self._publish = publish
        self._disk = backlog
        self._stored = backlog.count if backlog else 0  # on the disk, as of the last time that it answered
        self._renew = renew
        self._wall = wall
        self._up = connected
        self._number = self._first_number = time.time_ns() // 1000  # grows over restarts; only the order depends on it
        self._in_flight: dict[int, tuple[Message, float]] = {}  # number -> (message, when it left)
        self._waiting: dict[int, Message] = {}  # in memory, not on the disk (yet)
        self._waiting_bytes = 0
        self._arrived: set[int] = set()  # still on the disk
        self._busy = False  # something of the backlog is being sent, or written
        self._disk_failed_at = -DISK_RETRY_S
        self._pause_s = 0.0
        self._pause_until = 0.0
        self._restless = False  # ``run`` looks by itself from time to time
        self._wake = trio.Event()
        self._one_thread = trio.CapacityLimiter(1)
        self.error = ""  # why the disk does not take messages
        self.counts = {"confirmed": 0, "replayed": 0, "expired": 0, "given_up": 0, "disk_failures": 0}

    # ---- what the driver does

    def put(self, data: bytes, keep_s: float) -> None:
        """Send a message that must arrive; it is worth keeping for so many seconds."""
        self._number += 1
        now = self._wall()
        message = Message(self._number, now, now + keep_s, data)
        if self._flows() and len(self._in_flight) < IN_FLIGHT_MAX:
            self._in_flight[message.number] = (message, trio.current_time())
            self._publish(data, partial(self._confirmed, message.number))
        else:
            self._wait(message)
        if self._waiting or not self._restless:
            self._wake.set()

    def changed(self, up: bool) -> None:
        """The bus was lost, or is there again."""
        self._up = up
        self._pause_s = self._pause_until = 0.0
        self._disk_failed_at = -float("inf")  # look at once: what is on the disk goes first, if it can be read
        self._wake.set()

    def statistics(self) -> dict[str, Any]:
        """What waits, where, and what became of the rest since the start."""
        disk = self._disk
        on_disk = self._stored - len(self._arrived)
        oldest = [m.at for m in (*self._waiting.values(), *(m for m, _ in self._in_flight.values()))]
        if disk and on_disk > 0:
            oldest.append(disk.oldest_at)
        return {
            "waiting": max(0, on_disk) + len(self._waiting),
            "bytes": (disk.bytes if disk else 0) + self._waiting_bytes,
            "oldest_s": round(max(0.0, self._wall() - min(oldest)), 1) if oldest else 0.0,
            "in_flight": len(self._in_flight),
            "kept": "memory" if self.error or disk is None else "disk",
            "error": self.error or None,
            **self.counts,
        }

    @property
    def waiting(self) -> int:
        """How many messages wait for the bus."""
        return int(self.statistics()["waiting"])

    # ---- life

    async def run(self) -> None:
        """Write what waits, and send it when the bus is there, for ever."""
        while True:
            self._restless = bool(self._waiting or self._in_flight or (self._disk and self._disk.count))
            with trio.move_on_after(LOOK_S if self._restless else float("inf")):
                await self._wake.wait()
            self._wake = trio.Event()
            self._give_up_on_silence()
            self._busy = True
            try:
                await self._save()
                if self._up and trio.current_time() >= self._pause_until:
                    await self._replay()
            finally:
                self._busy = False

    async def finish(self) -> None:
        """Wait, a moment, until no thread is at the disk any more: ``close`` then has it alone."""
        with trio.move_on_after(DISK_S, shield=True):
            async with self._one_thread:
                pass

    def close(self) -> None:
        """Leave on the disk what has not left, for the next life of this node."""
        left = [*self._waiting.values(), *(message for message, _ in self._in_flight.values())]
        if self._disk is None:
            return
        try:
            if left:
                self._disk.append(sorted(left), self._wall())
        except UnavailableError as exc:
            log.error("backlog.lost", messages=len(left), reason=str(exc))
        self._disk.close()

    # ---- single steps

    def _flows(self) -> bool:
        """The bus is there and nothing stands before a new message."""
        return self._up and not self._waiting and not self._busy and not (self._disk and self._disk.count)

    def _confirmed(self, number: int, arrived: bool) -> None:
        message, _ = self._in_flight.pop(number, (None, 0.0))
        if message is None:
            return  # it was given up on, and sent again
        if arrived:
            self.counts["confirmed"] += 1
        else:
            self._wait(message)
            self._wake.set()

    def _give_up_on_silence(self) -> None:
        now = trio.current_time()
        for number, (message, left_at) in list(self._in_flight.items()):
            if now - left_at <= CONFIRM_S:
                break  # in the order in which they left
            del self._in_flight[number]
            self._wait(message)

    def _wait(self, message: Message) -> None:
        self._waiting[message.number] = message
        self._waiting_bytes += len(message.data)
        while len(self._waiting) > MEMORY_COUNT_MAX or self._waiting_bytes > MEMORY_BYTES_MAX:
            self._drop_waiting(min(self._waiting))
            self._given_up(1, "memory")

    def _drop_waiting(self, number: int) -> None:
        message = self._waiting.pop(number, None)
        if message is not None:
            self._waiting_bytes -= len(message.data)

    def _given_up(self, number: int, where: str) -> None:
        before = self.counts["given_up"]
        self.counts["given_up"] += number
        if before.bit_length() != self.counts["given_up"].bit_length():  # at 1, 2, 4, 8, …: a flood is no log
            log.error("backlog.full", given_up=self.counts["given_up"], where=where)

    async def _save(self) -> None:
        """What waits in memory to the disk, one transaction for all that has come since the last one."""
        while self._waiting and self._disk is not None and self._disk_may_work():
            batch = [self._waiting[number] for number in sorted(self._waiting)[:SAVE_BATCH]]
            given_up = await self._on_disk(partial(self._disk.append, batch, self._wall()))
            if given_up is None:
                return
            for message in batch:
                self._drop_waiting(message.number)
            if given_up:
                self._given_up(given_up, "disk")

    async def _replay(self) -> None:
        """Send what waits, in order, until nothing does or something did not arrive."""
        while self._up:
            batch = await self._first()
            if not batch:
                return
            if not await self._send(batch):
                self._pause_s = min(max(2 * self._pause_s, PAUSE_MIN_S), PAUSE_MAX_S)
                self._pause_until = trio.current_time() + self._pause_s
                return
            self._pause_s = 0.0
            await self._save()

    async def _first(self) -> list[Message]:
        """What is to leave next: what is on the disk is older than what is not."""
        disk = self._disk
        if disk is not None and self._arrived and self._disk_may_work():
            await self._remove(())  # before anything is read: what has arrived is not sent again
        if disk is not None and disk.count and self._disk_may_work():
            stored = await self._on_disk(partial(disk.first, REPLAY_BATCH))
            if stored:
                return stored
        return [self._waiting[number] for number in sorted(self._waiting)[:REPLAY_BATCH]]

    async def _send(self, batch: Sequence[Message]) -> bool:
        """True when nothing of the batch need be sent again."""
        now = self._wall()
        expired = [message.number for message in batch if message.until < now]
        live = [message for message in batch if message.until >= now]
        open_numbers = {message.number for message in live}
        arrived: list[int] = []
        answered = trio.Event()

        def confirmed(number: int, ok: bool) -> None:
            if number in open_numbers:
                open_numbers.discard(number)
                if ok:
                    arrived.append(number)
                if not open_numbers:
                    answered.set()

        for message in live:
            try:
                data = message.data if message.number > self._first_number else self._renew(message.data)
            except RemoteProtocolError as exc:
                log.error("backlog.not_readable", reason=str(exc))
                confirmed(message.number, True)  # no later life of this node will read it either
                continue
            self._publish(data, partial(confirmed, message.number))
        if open_numbers:
            with trio.move_on_after(CONFIRM_S):
                await answered.wait()
        open_numbers.clear()  # a late word changes nothing any more
        self.counts["expired"] += len(expired)
        self.counts["replayed"] += len(arrived)
        await self._remove((*arrived, *expired))
        return len(arrived) == len(live)

    async def _remove(self, numbers: Sequence[int]) -> None:
        on_disk = []
        for number in numbers:
            if number in self._waiting:
                self._drop_waiting(number)
            else:
                on_disk.append(number)
        if len(self._arrived) < ARRIVED_MAX:
            self._arrived.update(on_disk)
        if self._arrived and self._disk is not None:
            gone = sorted(self._arrived)
            removed = await self._on_disk(partial(_removed, self._disk, gone))
            if removed:
                self._arrived.difference_update(gone)

    # ---- the disk

    def _disk_may_work(self) -> bool:
        return not self.error or trio.current_time() >= self._disk_failed_at + DISK_RETRY_S

    async def _on_disk(self, act: Callable[[], T]) -> T | None:
        """Do it in a thread; None when the disk does not let us."""
        reason = f"it did not answer within {DISK_S:g} s"
        try:
            with trio.move_on_after(DISK_S):
                result = await trio.to_thread.run_sync(act, limiter=self._one_thread, abandon_on_cancel=True)
                if self.error:
                    log.info("backlog.on_disk")
                self.error = ""
                self._stored = self._disk.count if self._disk else 0
                return result
        except UnavailableError as exc:
            reason = str(exc)
        self.counts["disk_failures"] += 1
        self._disk_failed_at = trio.current_time()
        if not self.error:
            log.error("backlog.in_memory", reason=reason, room=MEMORY_COUNT_MAX)
        self.error = reason
        return None


def _removed(disk: Backlog, numbers: Sequence[int]) -> bool:
    disk.remove(numbers)
    return True
