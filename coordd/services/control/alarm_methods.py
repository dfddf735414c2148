"""The control methods of alarms: list them, and clear those that a person has looked at."""

from __future__ import annotations

from typing import Any

from coordd.errors import RefusedError
from coordd.services.control.callers import OPERATOR, Caller, Method
from coordd.services.control.ledger_methods import LedgerMethods
from coordd.services.control.rpc import take
from coordd.services.views.objects import instant

# A note is a sentence or two.
NOTE_MAX = 1000


class AlarmMethods(LedgerMethods):
    """The methods about alarms and the ledger."""

    def table(self) -> dict[str, Method]:
        """Every method, with the lowest role that may call it."""
        return {
            "alarm.list": Method(self.alarm_list),
            "alarm.clear": Method(self.alarm_clear, OPERATOR),
            **super().table(),
        }

    async def alarm_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        return [{**alarm, "at": instant(alarm["at"])} for alarm in self._driver.node.alarms.standing.values()]

    async def alarm_clear(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        note = take(params, "note", str).strip()
        if not note or len(note) > NOTE_MAX:
            raise RefusedError(
                f"a note of {len(note)} characters",
                kind="invalid_params",
                hint=f"say in 1 to {NOTE_MAX} characters what you found, for later readers",
            )
        standing = self._driver.node.alarms.standing
        wanted = take(params, "id", str, "")
        if wanted and wanted not in standing:
            raise RefusedError(f"no alarm {wanted!r} stands", kind="unknown_alarm", hint="coordctl alarm list")
        cleared = self._driver.feed(
            self._driver.node.clear_alarms, (wanted,) if wanted else tuple(standing), note, caller.name
        )
        for ident in cleared:
            self._audit(caller, "alarm.clear", f"{ident}: {note}")
        return {"cleared": cleared, "standing": len(standing)}
