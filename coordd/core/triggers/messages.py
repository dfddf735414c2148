"""Messages of queues and streams: which arrival one is, and what a look has found."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from coordd.core.jobs.arguments import control_character
from coordd.core.jobs.trigger import IN_BODY, KEY_BODY, KEY_ID, Trigger
from coordd.core.triggers.arrivals import Arrival
from coordd.core.triggers.bodies import values_of

NO_FIELDS: Mapping[str, Any] = MappingProxyType({})

# Bytes of a key.
KEY_BYTES_MAX = 1024


class Message(NamedTuple):
    """A message that its server waits for the acknowledgement of. ``place``: its name there, for the acknowledgement.
    ``ident``: the same at each delivery; "" if it has none. ``digest``: of its content. ``fields``: its document.
    ``problem``: why it can start nothing, or "".
    """

    place: str
    ident: str
    digest: str = ""
    fields: Mapping[str, Any] = NO_FIELDS
    problem: str = ""


class Dead(NamedTuple):
    """A message that was put aside. ``at``: Unix seconds. ``place``: its name among those."""

    at: float
    ident: str
    reason: str
    place: str = ""


class Batch(NamedTuple):
    """``messages``: oldest first. ``behind``: how many its server has for us, these among them. ``dead``: how many were
    put aside, and the last ones of them.
    """

    messages: list[Message]
    behind: int
    dead: int = 0
    dead_last: tuple[Dead, ...] = ()


def arrival_of(trigger: Trigger, message: Message) -> Arrival | str:
    """What a message starts, or why it can start nothing."""
    if message.problem:
        return message.problem
    if trigger.key == KEY_ID:
        key, what = message.ident, "an id"
    elif trigger.key == KEY_BODY:
        key, what = message.digest, "a body"
    else:
        key, what = values_of(message.fields).get(trigger.key, ""), f'the field "{trigger.key.removeprefix(IN_BODY)}"'
    if not key:
        return f'expected {what}, which is its key (key = "{trigger.key}"), found nothing'
    if len(key.encode(errors="replace")) > KEY_BYTES_MAX:
        return f"expected a key of at most {KEY_BYTES_MAX} bytes, found more"
    if bad := control_character(key):
        return f"its key has the character {bad!r}"
    return Arrival(key, {"key": key, **values_of(message.fields)})
