"""The control methods about copies that were given up (dead letters of the kind `sink`), and logs read from copies."""

from __future__ import annotations

from typing import Any

from coordd.errors import RefusedError, UnavailableError
from coordd.ports import Copy
from coordd.services.control.callers import OPERATOR, Caller
from coordd.services.control.rpc import take
from coordd.services.logs.methods import LogMethods
from coordd.services.logs.questions import Reader
from coordd.services.logs.reading import Found, Whole
from coordd.services.sinks.service import Sinks
from coordd.services.views import objects

# The ids of these dead letters: sink:SINK:NAME. No job's name has a colon.
PREFIX = "sink:"


class SinkMethods(LogMethods):
    """Dead letters of runs, and of copies beside them: those of this node's disk."""

    sinks: Sinks | None = None

    async def deadletter_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        found = await super().deadletter_list(params, caller)
        job = take(params, "job", str, "")
        copies = await self.sinks.letters() if self.sinks is not None else []
        mine = [view for view in map(self._view, copies) if job in ("", view["job"])]
        limit = max(1, take(params, "limit", int, 100))
        return sorted([*found, *mine], key=lambda view: str(view["at"]), reverse=True)[:limit]

    async def deadletter_show(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        one = await self._copy(params)
        if one is None:
            return await super().deadletter_show(params, caller)
        return {**self._view(one), "dead": True, "shown": None}

    async def deadletter_replay(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        if not take(params, "id", str).startswith(PREFIX):
            return await super().deadletter_replay(params, caller)
        self._may_copy(caller)
        one = await self._copy(params)
        assert one is not None
        assert self.sinks is not None
        await self.sinks.replay(one)
        ident = f"{PREFIX}{one.sink}:{one.name}"
        self._audit(caller, "deadletter.replay", ident)
        return {"id": ident, "run": None, "attempt": None, "state": "waiting"}

    async def deadletter_discard(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        if not take(params, "id", str).startswith(PREFIX):
            return await super().deadletter_discard(params, caller)
        self._may_copy(caller)
        note = self._discard_note(params)
        one = await self._copy(params)
        assert one is not None
        assert self.sinks is not None
        await self.sinks.discard(one)
        ident = f"{PREFIX}{one.sink}:{one.name}"
        self._audit(caller, "deadletter.discard", f"{ident}: {note}")
        return {"id": ident, "run": None, "state": "dead", "discarded": True}

    async def _end_of_log(self, found: Found, attempt: int | None, reader: Reader, limit: int) -> Whole:
        """From the node that has the log; if that is away, from the copy."""
        try:
            return await super()._end_of_log(found, attempt, reader, limit)
        except (RefusedError, UnavailableError) as exc:
            number = found.newest if attempt is None else attempt
            host = found.host(number)
            away = isinstance(exc, UnavailableError) or exc.kind == "node_not_alive"
            if not away or self.sinks is None or not host:
                raise
            try:
                where, data = await self.sinks.end(host, found.row.run, number, limit)
            except (RefusedError, UnavailableError) as also:
                if isinstance(also, RefusedError) and "log_sink" in str(also):
                    raise exc from also
                raise UnavailableError(f"{exc}; and its copy: {also}") from also
            return Whole(number, host, where, data, copy=True)

    async def _copy(self, params: dict[str, Any]) -> Copy | None:
        """The copy that is meant; None if the id is a run's."""
        ident = take(params, "id", str)
        if not ident.startswith(PREFIX):
            return None
        sink, _, name = ident.removeprefix(PREFIX).partition(":")
        if self.sinks is None:
            raise RefusedError(f"{ident} is not a dead letter of this node", kind="unknown_run")
        return await self.sinks.letter(sink, name)

    def _may_copy(self, caller: Caller) -> None:
        if caller.role < OPERATOR:
            raise RefusedError(
                f"{caller.name} may not copy files of this node",
                kind="not_permitted",
                hint="this needs the operator group",
            )

    def _view(self, one: Copy) -> dict[str, Any]:
        parts = one.name.split("/")
        return {
            "id": f"{PREFIX}{one.sink}:{one.name}",
            "kind": "sink",
            "at": objects.instant(one.at),
            "reason": one.reason or None,
            "attempts": one.tries,
            "job": parts[1] if one.sink == "log" and len(parts) > 2 else None,
            "run": None,
            "state": one.state,
            "exit_code": None,
            "node": self._driver.node.hostname,
        }
