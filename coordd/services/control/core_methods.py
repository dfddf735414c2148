"""The control methods about the node's work: its elections and alarms, the events between nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from difflib import get_close_matches
from typing import Any

import trio

from coordd.core.wire.events import LOCAL, AnyEvent, event_type, flat
from coordd.errors import RefusedError
from coordd.services.control.callers import OPERATOR, VIEWER, Caller, Method
from coordd.services.control.ledger_methods import LedgerMethods
from coordd.services.control.rpc import INVALID_PARAMS, RpcError, take, take_id
from coordd.services.views import objects

# The maximum number of rows in one answer, for operators and for viewers.
LIST_MAX = 10_000
VIEWER_LIST_MAX = 100

# A stream sends a sign of life at least this often (seconds), so that the server notices a client that is gone.
ALIVE_S = 15.0

# How many event types a subscriber may name (about twenty exist), and the maximum length of a name.
TYPES_MAX = 100
TYPE_LENGTH_MAX = 64

# A note on alarms is a sentence or two.
NOTE_MAX = 1000


# The names of all events, as on the wire.
KNOWN_TYPES = frozenset(str(kind.__struct_config__.tag) for kind in (*AnyEvent.__args__, *LOCAL))


class CoreMethods(LedgerMethods):
    """The methods about the core; the base class of all other methods."""

    def table(self) -> dict[str, Method]:
        """Every method, with the lowest role that may call it."""
        return {
            "election.list": Method(self.election_list),
            "events.subscribe": Method(self.events_subscribe),
            "alarm.list": Method(self.alarm_list),
            "alarm.clear": Method(self.alarm_clear, OPERATOR),
            **super().table(),
        }

    async def alarm_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        return [{**alarm, "at": objects.instant(alarm["at"])} for alarm in self._driver.node.alarms.standing.values()]

    async def alarm_clear(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        note = take(params, "note", str).strip()
        if not note or len(note) > NOTE_MAX:
            raise RefusedError(
                f"a note of {len(note)} characters",
                kind="invalid_params",
                hint=f"say in 1 to {NOTE_MAX} characters what you found, for later readers",
            )
        wanted = take_id(params)
        standing = self._driver.node.alarms.standing
        if wanted and wanted not in standing:
            raise RefusedError(f"no alarm {wanted!r} stands", kind="unknown_alarm", hint="coordctl alarm list")
        cleared = self._driver.feed(
            self._driver.node.clear_alarms, (wanted,) if wanted else tuple(standing), note, caller.name
        )
        for ident in cleared:
            self._audit(caller, "alarm.clear", f"{ident}: {note}")
        return {"cleared": cleared, "standing": len(standing)}

    async def election_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        most = VIEWER_LIST_MAX if caller.role <= VIEWER else LIST_MAX
        limit = min(max(1, take(params, "limit", int, 50)), most)
        elections = list(self._driver.node.elections.by_id.values())[-limit:]
        return [objects.election_view(election) for election in elections]

    async def events_subscribe(self, params: dict[str, Any], caller: Caller) -> AsyncIterator[dict[str, Any]]:
        wanted, without = _types(params, "types"), _types(params, "without")
        backlog = min(max(0, take(params, "backlog", int, 0)), 2000)
        return self._events((wanted or KNOWN_TYPES) - without, backlog, follow=take(params, "follow", bool, True))

    async def _events(self, types: frozenset[str], backlog: int, *, follow: bool) -> AsyncIterator[dict[str, Any]]:
        """Streams the events that this node sends and hears. A slow reader loses the oldest, and is told how many."""
        driver = self._driver
        seen = driver.recent_total
        past = [one for one in driver.recent if event_type(one[1]) in types] if backlog else []
        for packet, event in past[-backlog:]:  # the newest of the matching events
            yield {"event": flat(packet, event)}
        while True:
            news = driver.wait_for_news()  # taken before counting: an event that arrives while we send wakes us again
            fresh, seen = driver.recent_total - seen, driver.recent_total
            recent = list(driver.recent)[-fresh:] if fresh else []
            if fresh > len(recent):
                yield {"lost": fresh - len(recent)}
            for packet, event in recent:
                if event_type(event) in types:
                    yield {"event": flat(packet, event)}
            if not follow:
                return
            with trio.move_on_after(ALIVE_S) as scope:
                await news.wait()
            if scope.cancelled_caught:
                yield {"alive": True}


def _types(params: dict[str, Any], name: str) -> frozenset[str]:
    """The event types that a parameter names. Raises RpcError for one that does not exist."""
    wanted = take(params, name, list, [])
    if len(wanted) > TYPES_MAX or not all(isinstance(w, str) and len(w) <= TYPE_LENGTH_MAX for w in wanted):
        raise RpcError(
            INVALID_PARAMS,
            f"{name}: expected at most {TYPES_MAX} names of event types",
            kind="invalid_params",
            hint="task-started, worker-online, …: docs/protocol.md lists them",
        )
    for word in wanted:
        if word not in KNOWN_TYPES:
            near = get_close_matches(word, KNOWN_TYPES, n=1)
            raise RpcError(
                INVALID_PARAMS,
                f'there is no event type "{word}"',
                kind="invalid_params",
                hint=f'did you mean "{near[0]}"?' if near else ", ".join(sorted(KNOWN_TYPES)),
            )
    return frozenset(wanted)
