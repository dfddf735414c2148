"""What a poller finds in a queue or a stream. It acknowledges a message when the ledger has the run, and not before."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from coordd.core.jobs.trigger import Trigger
from coordd.core.triggers.arrivals import Arrival
from coordd.core.triggers.messages import arrival_of
from coordd.ports import MessageQueue
from coordd.services.triggering.sources import Look, Room, Source

# Messages that one look reads. Each has up to 64 KiB.
READ_MAX = 200


class QueueSource(Source):
    """The messages of a queue or a stream. It reads only messages that have room: the others stay where they are."""

    def __init__(self, trigger: Trigger, queue: MessageQueue) -> None:
        self._trigger = trigger
        self._queue = queue
        self._places: dict[str, list[str]] = {}  # of the last look: key -> the messages that have it
        self._dead: list[tuple[str, str]] = []  # of the last look: messages that can start nothing, and why
        self._more = False

    async def look(self, room: Room) -> Look:
        batch = await self._queue.read(0)
        if batch.behind and (most := min(READ_MAX, await room())):
            batch = await self._queue.read(most)
        self._places = {}
        arrivals: list[Arrival] = []
        dead: list[tuple[str, str]] = []
        refused: list[tuple[str, str]] = []
        for message in batch.messages:
            found = arrival_of(self._trigger, message)
            if isinstance(found, str):
                dead.append((message.place, found))
                refused.append((message.ident or message.place, found))
                continue
            if found.key not in self._places:
                arrivals.append(found)
            self._places.setdefault(found.key, []).append(message.place)
        self._dead = dead  # put aside at the end: a failure there holds up none of the others
        behind = max(0, batch.behind - len(batch.messages))
        self._more = behind > 0
        return Look(
            arrivals, refused, soon=bool(dead), behind=behind, dead=batch.dead + len(dead), dead_last=batch.dead_last
        )

    async def settle(self, recorded: Collection[str], impossible: Mapping[str, str]) -> bool:
        done = [place for key, places in self._places.items() if key in recorded for place in places]
        await self._queue.acknowledge(done)
        dead = [*self._dead, *((place, why) for key, why in impossible.items() for place in self._places.get(key, ()))]
        self._dead = []
        await self._queue.put_aside(dead)
        return self._more and bool(done or dead)

    async def close(self) -> None:
        self._places, self._dead = {}, []
        await self._queue.close()
