"""The outbox: messages that must not be lost wait on the disk, in order, until the bus is back.

While the bus is up, a message is published at once and kept until the transport confirms it. Unconfirmed messages go to
the backlog, and so do new ones while any wait. The backlog is sent in order, in small batches; a message is removed
when it is confirmed. So a message may arrive twice; the receiver drops the second copy.

Only facts and commands wait here: a run was started, ended or revoked. A receiver merges them even if they are late.
Elections and heartbeats are never kept: they would be wrong when late.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import structlog
import trio

from coordd.core.wire.events import OTHERS_RETURN_S
from coordd.errors import RemoteProtocolError, UnavailableError
from coordd.ports import Backlog, Message
from coordd.services.pace import in_thread

log = structlog.get_logger("outbox")
T = TypeVar("T")

# After a day only histories need news of a run, and they read the journals.
KEEP_FACTS_S = 86_400.0

# A command makes nodes ask the ledger sooner: after this time (seconds) every node has asked anyway.
KEEP_COMMANDS_S = 30.0

# While the disk fails, messages wait in memory, up to this number.
MEMORY_COUNT_MAX = 10_000
MEMORY_BYTES_MAX = 16 * 2**20

# Maximum number of unconfirmed messages; with more, the broker does not keep up.
IN_FLIGHT_MAX = 1000

# Messages per batch from the backlog. Small, so that a broker that has just returned is not flooded, and a failure
# repeats only a few messages.
REPLAY_BATCH = 64

# If a confirmation does not come within this time (seconds), the message is sent again.
CONFIRM_S = 10.0

# Maximum number of messages per transaction.
SAVE_BATCH = 1000

# Disk timeout (seconds), and the pause before the next try.
DISK_S = 5.0
DISK_RETRY_S = 5.0

# How often (seconds) the outbox checks for messages to send, or to send again.
LOOK_S = 1.0

# The pause between batches after an unconfirmed one; doubles up to the maximum.
PAUSE_MIN_S = 0.5
PAUSE_MAX_S = 15.0

# Maximum number of confirmed messages that the disk could not remove: they are remembered, and not sent again.
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
        """``publish`` as in ports.Bus. ``renew`` rewrites a message of an earlier process of this node under its
        present name. Without a backlog, everything waits in memory.
        """
        self._publish = publish
        self._disk = backlog
        self._stored = backlog.count if backlog else 0  # on the disk, at its last answer
        self._renew = renew
        self._wall = wall
        self._up = self._was_up = connected
        self._others_at = 0.0  # when the others are back
        self._number = self._first_number = time.time_ns() // 1000  # grows over restarts; only the order depends on it
        self._in_flight: dict[int, tuple[Message, float]] = {}  # number -> (message, when it left)
        self._waiting: dict[int, Message] = {}  # in memory, not on the disk yet
        self._waiting_bytes = 0
        self._arrived: set[int] = set()  # still on the disk
        self._busy = False  # a batch of the backlog is being sent or written
        self._disk_failed_at = -DISK_RETRY_S
        self._pause_s = 0.0
        self._pause_until = 0.0
        self._restless = False  # ``run`` checks by itself from time to time
        self._wake = trio.Event()
        self._one_thread = trio.CapacityLimiter(1)
        self.error = ""  # why the disk refuses messages
        self.counts = {"confirmed": 0, "replayed": 0, "expired": 0, "given_up": 0, "disk_failures": 0}

    # ---- for the driver

    def put(self, data: bytes, keep_s: float) -> None:
        """Send a message that must arrive; it is kept for ``keep_s`` seconds at most."""
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
        """The bus was lost, or is back."""
        if up and self._was_up:
            # A broker confirms what nobody hears: what waits goes on waiting, with what comes after it.
            self._others_at = trio.current_time() + OTHERS_RETURN_S
        self._up, self._was_up = up, self._was_up or up
        self._pause_s = self._pause_until = 0.0
        self._disk_failed_at = -float("inf")  # try at once: messages on the disk go first, if it can be read
        self._wake.set()

    def statistics(self) -> dict[str, Any]:
        """The waiting messages: how many, where, and counters since the start."""
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
        """Store waiting messages, and send them when the bus is up, for ever."""
        while True:
            self._restless = bool(self._waiting or self._in_flight or (self._disk and self._disk.count))
            with trio.move_on_after(LOOK_S if self._restless else float("inf")):
                await self._wake.wait()
            self._wake = trio.Event()
            self._give_up_on_silence()
            self._busy = True
            try:
                await self._save()
                if self._may_send() and trio.current_time() >= self._pause_until:
                    await self._replay()
            finally:
                self._busy = False

    async def finish(self) -> None:
        """Wait a moment until no thread uses the disk any more: then ``close`` has it alone."""
        with trio.move_on_after(DISK_S, shield=True):
            async with self._one_thread:
                pass

    def close(self) -> None:
        """Leave unsent messages on the disk, for the next process of this node."""
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
        """True when the bus is up, the others are back, and no older message waits."""
        return self._may_send() and not self._waiting and not self._busy and not (self._disk and self._disk.count)

    def _confirmed(self, number: int, arrived: bool) -> None:
        message, _ = self._in_flight.pop(number, (None, 0.0))
        if message is None:
            return  # it had timed out, and was sent again
        if arrived:
            self.counts["confirmed"] += 1
        else:
            self._wait(message)
            self._wake.set()

    def _give_up_on_silence(self) -> None:
        now = trio.current_time()
        for number, (message, left_at) in list(self._in_flight.items()):
            if now - left_at <= CONFIRM_S:
                break  # they are in the order of sending
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
        if (
            before.bit_length() != self.counts["given_up"].bit_length()
        ):  # at 1, 2, 4, 8, …: a flood must not fill the log
            log.error("backlog.full", given_up=self.counts["given_up"], where=where)

    async def _save(self) -> None:
        """Write the waiting messages to the disk, in one transaction."""
        while self._waiting and self._disk is not None and self._disk_may_work():
            batch = [self._waiting[number] for number in sorted(self._waiting)[:SAVE_BATCH]]
            given_up = await self._on_disk(partial(self._disk.append, batch, self._wall()))
            if given_up is None:
                return
            for message in batch:
                self._drop_waiting(message.number)
            if given_up:
                self._given_up(given_up, "disk")

    def _may_send(self) -> bool:
        return self._up and trio.current_time() >= self._others_at

    async def _replay(self) -> None:
        """Send waiting messages in order, until none is left or one did not arrive."""
        while self._may_send():
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
        """The next batch: messages on the disk are older than those in memory."""
        disk = self._disk
        if disk is not None and self._arrived and self._disk_may_work():
            await self._remove(())  # before reading: confirmed messages must not be sent again
        if disk is not None and disk.count and self._disk_may_work():
            stored = await self._on_disk(partial(disk.first, REPLAY_BATCH))
            if stored:
                return stored
        return [self._waiting[number] for number in sorted(self._waiting)[:REPLAY_BATCH]]

    async def _send(self, batch: Sequence[Message]) -> bool:
        """True when the whole batch was confirmed."""
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
                confirmed(message.number, True)  # no later process of this node can read it either
                continue
            self._publish(data, partial(confirmed, message.number))
        if open_numbers:
            with trio.move_on_after(CONFIRM_S):
                await answered.wait()
        open_numbers.clear()  # a late confirmation changes nothing
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
        """Run it in a thread; None when the disk fails."""
        reason = f"it did not answer within {DISK_S:g} s"
        try:
            with trio.move_on_after(DISK_S):
                result = await in_thread(act, self._one_thread, abandon_on_cancel=True)
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
