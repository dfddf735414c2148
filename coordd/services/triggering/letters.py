"""Dead letters of triggers: messages of queues and streams that could start nothing.

Their broker keeps them beside the queue (`QUEUE.dead`, `STREAM:dead`). The node that polls a trigger knows of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordd.core.jobs.job import Job
from coordd.core.jobs.trigger import AMQP, REDIS, Trigger
from coordd.errors import RefusedError
from coordd.services.control.callers import Caller
from coordd.services.control.rpc import take
from coordd.services.triggering.methods import TriggerMethods

# The ids of these dead letters: trigger:JOB/NAME/PLACE. No job's name has a colon.
PREFIX = "trigger:"


class TriggerLetterMethods(TriggerMethods):
    """Dead letters of runs, and of what was to become one."""

    async def deadletter_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        found = await super().deadletter_list(params, caller)
        wanted = take(params, "job", str, "")
        for one in await self.trigger_list({"job": wanted}, caller):
            if one["dead"]:
                found += await self._dead_of(one["job"], one["name"], caller)
        limit = max(1, take(params, "limit", int, 100))
        return sorted(found, key=lambda view: str(view["at"]), reverse=True)[:limit]

    async def deadletter_show(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        ident = take(params, "id", str)
        if not ident.startswith(PREFIX):
            return await super().deadletter_show(params, caller)
        job, trigger, place = self._meant(ident)
        for view in await self._dead_of(job.name, trigger.name, caller):
            if view["id"] == ident:
                return {**view, "dead": True, "shown": None}
        raise _absent(ident, place)

    async def deadletter_replay(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        ident = take(params, "id", str)
        if not ident.startswith(PREFIX):
            return await super().deadletter_replay(params, caller)
        await self._take_back(ident, caller, again=True)
        self._audit(caller, "deadletter.replay", ident)
        return {"id": ident, "run": None, "attempt": None, "state": "waiting"}

    async def deadletter_discard(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        ident = take(params, "id", str)
        if not ident.startswith(PREFIX):
            return await super().deadletter_discard(params, caller)
        note = self._discard_note(params)
        await self._take_back(ident, caller, again=False)
        self._audit(caller, "deadletter.discard", f"{ident}: {note}")
        return {"id": ident, "run": None, "state": "dead", "discarded": True}

    async def _take_back(self, ident: str, caller: Caller, *, again: bool) -> None:
        job, trigger, place = self._meant(ident)
        self._may_operate(caller, job.name)
        if self.triggering is None or not await self.triggering.take_back(job.name, trigger, place, again=again):
            raise _absent(ident, place)

    def _meant(self, ident: str) -> tuple[Job, Trigger, str]:
        """Raises RefusedError."""
        name, _, rest = ident.removeprefix(PREFIX).partition("/")
        of, _, place = rest.partition("/")
        job = self._job({"job": name})
        trigger = self._one(job, of)
        if trigger.kind not in (AMQP, REDIS):
            raise _absent(ident, place)
        return job, trigger, place

    async def _dead_of(self, job: str, name: str, caller: Caller) -> list[dict[str, Any]]:
        """Those that the node that polls shows: the first or the last 20."""
        shown = await self.trigger_show({"job": job, "name": name}, caller)
        return [_view(shown, one) for one in shown["dead_last"] if one.get("place")]


def _view(trigger: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    told = f"message {one['message']}: " if one["message"] else ""
    return {
        "id": f"{PREFIX}{trigger['job']}/{trigger['name']}/{one['place']}",
        "kind": "message",
        "at": one["at"],
        "reason": told + one["reason"],
        "attempts": 1,
        "job": trigger["job"],
        "run": None,
        "state": "dead",
        "exit_code": None,
        "node": trigger["poller"],
    }


def _absent(ident: str, place: str) -> RefusedError:
    what = f"{ident[:200]} is not a dead letter" if place else f"{ident[:200]!r} is not the id of a dead letter"
    return RefusedError(what, kind="unknown_run", hint="coordctl deadletter list shows all dead letters")
