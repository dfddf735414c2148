"""The target: one value, or a few, in an otherwise sound row, reply or packet."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from support.ledger_calls import EPOCH

from coordd.adapters.ledger.redis_rows import OPEN_COLUMNS
from coordd.core.ledger.rows import JOB_COLUMNS, RUN_COLUMNS, JobRow
from coordd.core.ledger.words import STATES, WORDS
from coordd.core.wire import codec
from coordd.core.wire.events import event_type
from fuzz.bus import packets
from fuzz.mutate import distort, pick
from fuzz.trial import Try, scratch
from fuzz.values.dialogue import recorded
from fuzz.values.spoil import lettered, near, text_of, value
from fuzz.values.tables import written
from fuzz.values.world import ATTEMPTS, CLAIMED, HASH, OPEN, PACKET, World, row

# The places in a sweep's reply (adapters/ledger/lua/shared/pages.lua).
RUNS_AT = 5
# How often each kind of input is made: one word each time. A table's name stands for a row of it.
RATHER = (
    *[PACKET] * 6,
    *["runs"] * 8,
    *[OPEN] * 4,
    *[CLAIMED] * 3,
    *["meta"] * 3,
    *["standing", "jobs", "attempts"] * 2,
)

FIELDS = {event_type(event): type(event).__struct_fields__ for packet in packets() for event in packet.events}


class WorthTarget:
    """Rows, replies and events whose values are not what a node writes."""

    name = "values"
    what = "rows of a ledger, replies, events: values past the codec"
    limit_s = 3.0

    def __init__(self) -> None:
        self._trees = [msgspec.msgpack.decode(codec.encode(packet)) for packet in packets()]
        self._replies = recorded()
        self._rows = dict(written())
        old = JobRow("sales", 7, EPOCH)  # as versions with the old rules write it
        self._rows["jobs"] = [*self._rows["jobs"], dict(zip(JOB_COLUMNS, old.values(), strict=True))]
        one_of_each = [dict(zip(RUN_COLUMNS, row(state).values(), strict=True)) for state in STATES]
        self._rows["runs"] = [*self._rows["runs"], *one_of_each]
        self.makers: dict[str, Callable[[random.Random], Any]] = {
            PACKET: self._packet,
            OPEN: lambda rng: spoilt_reply(pick(rng, self._replies.opened), rng),
            CLAIMED: lambda rng: spoilt_reply(pick(rng, self._replies.claimed), rng),
            HASH: lambda rng: spoilt_hash(pick(rng, self._replies.rows), rng),
            ATTEMPTS: lambda rng: spoilt_attempts(pick(rng, self._replies.attempts), rng),
            **{table: lambda rng, table=table: self._row(rng, table) for table in self._rows},  # type: ignore[misc]  # a default binds the loop's variable
        }
        self._kinds = (*self.makers, *RATHER)

    def make(self, rng: random.Random) -> bytes:
        """An input of a random kind."""
        return self.make_one(pick(rng, self._kinds), rng)

    def make_one(self, kind: str, rng: random.Random) -> bytes:
        """An input of this kind."""
        return json.dumps({"kind": kind, "values": lettered(self.makers[kind](rng))}).encode()

    def _packet(self, rng: random.Random) -> Any:
        tree = dict(pick(rng, self._trees))
        if rng.random() < 0.5:
            return distort(tree, rng)
        said = [dict(event) for event in tree["events"]]
        for _ in range(pick(rng, (1, 1, 2, 3))):  # a field of one event, of any kind of value
            event = pick(rng, said)
            field = pick(rng, FIELDS[event["type"]])
            if field == "action" and isinstance(event.get("action"), dict) and rng.random() < 0.8:
                inner = pick(rng, ("job", "run", "attempt", "fire_at", "scheduled", "digest", "args"))
                event["action"] = {**event["action"], inner: value(rng, inner)}
            elif isinstance(event.get(field), (list, dict)) and rng.random() < 0.8:  # what stands inside it
                event[field] = distort(event[field], rng)
            else:
                event[field] = value(rng, field)
        return {**tree, "events": said}

    def _row(self, rng: random.Random, table: str) -> Any:
        fields = dict(pick(rng, self._rows[table]))
        if table == "runs":
            fields["run"] = pick(rng, ("sales#1", "sales#2", "tick@2025-01-29T08:00:00Z", "gone#1"))
        if "job" in fields and table != "runs":
            fields["job"] = pick(rng, ("sales", "sales", "tick"))
        changes = (0, 1, 1, 1, 2, 3, 8) if table == "runs" else (1, 1, 1, 2)
        for _ in range(pick(rng, changes)):
            # Without its key a row is of no job, run or value: nobody would read it.
            column = pick(rng, [name for name in fields if name != "key" or rng.random() < 0.1])
            old = fields[column]
            keeps = isinstance(old, str) and table in ("meta", "changes") and rng.random() < 0.6
            fields[column] = near(old, rng) if keeps else value(rng, column)
        return fields

    @asynccontextmanager
    async def world(self) -> AsyncIterator[Try]:
        """A new node."""
        with scratch() as directory:
            yield World(directory).attempt


def spoilt_reply(reply: Any, rng: random.Random) -> Any:
    """A copy with a few other values; its lists are as long as they were."""
    for _ in range(pick(rng, (0, 1, 1, 1, 1, 1, 1, 2, 3))):
        reply = _spoilt(reply, rng, ())
    return reply


def _spoilt(part: Any, rng: random.Random, path: tuple[int, ...]) -> Any:
    if isinstance(part, list):
        if not part:
            return part
        place = int(rng.random() * len(part))
        if not path and part[1] != b"open" and place >= 2 and place % 2 == 0 and rng.random() < 0.9:
            place += 1  # a value rather than a name, because unknown names are left out
        return [*part[:place], _spoilt(part[place], rng, (*path, place)), *part[place + 1 :]]
    if path == (1,) and rng.random() < 0.8:
        return b"open" if part == b"open" else pick(rng, sorted(WORDS)).encode()
    if len(path) == 3 and path[0] == RUNS_AT and rng.random() < 0.5:
        return text_of(value(rng, OPEN_COLUMNS[path[2]]))
    return text_of(near((part or b"").decode(errors="replace"), rng) if rng.random() < 0.8 else value(rng, ""))


def spoilt_hash(found: list[bytes | None], rng: random.Random) -> Any:
    """A run's hash with a few other values."""
    made = list(found)
    for _ in range(pick(rng, (1, 1, 2, 5))):
        place = int(rng.random() * len(made))
        made[place] = text_of(value(rng, RUN_COLUMNS[place]))
    return made


def spoilt_attempts(found: list[bytes], rng: random.Random) -> Any:
    """The attempts of a run with other values, and with fields that no attempt has."""
    made = list(found)
    for _ in range(pick(rng, (1, 1, 2, 5))):
        place = 2 * int(rng.random() * (len(made) // 2))
        made[place + 1] = text_of(value(rng, made[place].decode().partition(":")[2]))
        if rng.random() < 0.2:
            made[place] = text_of(f"{pick(rng, (0, 1, 'x', '', 10**30))}:{pick(rng, RUN_COLUMNS)}")
    return made
