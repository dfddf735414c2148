"""Alarms: something happened that must never happen. Kept until a person has looked at it.

There is one kind: an attempt was started under two tokens. Either two ledgers granted it, or one that had forgotten the
first grant. Each node that hears both starts raises the alarm. It outlives restarts (the shell keeps ``kept()`` on the
disk). A person clears it with a note; the other nodes are told, and it is not raised again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coordd.core.context import Context
from coordd.core.ready import Now
from coordd.core.wire.events import ControlClear, Task, TaskStarted

# Starts that are remembered, to compare them with later ones.
STARTS_MAX = 4000

# Maximum number of alarms; more would say nothing new. And of ids of cleared ones.
ALARMS_MAX = 100
CLEARED_MAX = 1000

# The fields of an alarm, all of them text or numbers.
FIELDS: dict[str, type] = {"id": str, "kind": str, "run": str, "attempt": int, "at": float, "text": str}

STARTED_TWICE = "started-twice"


class Alarms:
    """The alarms that one node knows."""

    __slots__ = ("_ctx", "_starts", "cleared", "standing")

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._starts: dict[tuple[str, int], tuple[int, str]] = {}  # (run, attempt) -> (token, node)
        self.standing: dict[str, dict[str, Any]] = {}  # by id, oldest first
        self.cleared: dict[str, str] = {}  # id -> the note

    def recall(self, kept: Mapping[str, Any]) -> None:
        """Take the alarms from an earlier process of this node; invalid ones are left out."""
        for alarm in _listed(kept.get("standing")):
            if isinstance(alarm, dict) and all(isinstance(alarm.get(name), kind) for name, kind in FIELDS.items()):
                self.standing[alarm["id"]] = {name: alarm[name] for name in FIELDS}
        cleared = kept.get("cleared")
        for ident, note in cleared.items() if isinstance(cleared, dict) else ():
            self.cleared[str(ident)] = str(note)

    def kept(self) -> dict[str, Any]:
        """The alarms for this node's next process."""
        return {"standing": list(self.standing.values()), "cleared": self.cleared}

    def saw(self, event: Task) -> None:
        """An event of an attempt, of this node or another, new or from the journal."""
        if not isinstance(event, TaskStarted) or not event.token:
            return
        key = (event.run, event.attempt)
        before = self._starts.pop(key, None)
        if before is None and len(self._starts) >= STARTS_MAX:
            del self._starts[next(iter(self._starts))]
        self._starts[key] = (event.token, event.node)
        if before is not None and before[0] != event.token:
            self._raise(event, before)

    def clear(self, idents: Iterable[str], note: str, by: str, now: Now) -> list[str]:
        """A person has looked at these alarms; returns the ids that were active. The other nodes are told."""
        done = self._clear(idents, note)
        if done:
            self._ctx.publish(ControlClear(ids=tuple(done), note=note, by=by), now)
        return done

    def clear_heard(self, event: ControlClear) -> None:
        """A person has cleared them on another node."""
        self._clear(event.ids, event.note)

    def _clear(self, idents: Iterable[str], note: str) -> list[str]:
        done = []
        for ident in idents:
            if self.standing.pop(ident, None) is not None:
                done.append(ident)
                self._ctx.note("alarm.cleared", id=ident, note=note)
            if ident not in self.cleared:
                if len(self.cleared) >= CLEARED_MAX:
                    del self.cleared[next(iter(self.cleared))]
                self.cleared[ident] = note
                self._ctx.out.alarms_changed = True
        return done

    def _raise(self, event: TaskStarted, before: tuple[int, str]) -> None:
        first, second = sorted((before, (event.token, event.node)))
        ident = f"{event.run}/{event.attempt}:{first[0]}:{second[0]}"
        if ident in self.standing or ident in self.cleared or len(self.standing) >= ALARMS_MAX:
            return
        text = (
            f"{event.run}, attempt {event.attempt}, was started twice: on {first[1]} under token {first[0]}, and on"
            f" {second[1]} under token {second[0]}"
        )
        self.standing[ident] = {
            "id": ident,
            "kind": STARTED_TWICE,
            "run": event.run,
            "attempt": event.attempt,
            "at": float(event.timestamp),
            "text": text,
        }
        self._ctx.note("alarm.raised", id=ident, text=text)
        self._ctx.out.alarms_changed = True


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
