"""The control methods about poisonous inputs (dead letters of the kind `input`): a driver refuses them until a person
lets them be tried again.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from coordd.core.ledger.inputs.memory import Seen, is_kept
from coordd.core.ledger.requests import Keep
from coordd.core.ledger.rows import OF_INPUT, Hold
from coordd.core.visible import visible
from coordd.errors import RefusedError, UnavailableError
from coordd.ports import Ledger
from coordd.services.control.callers import VIEWER, Caller
from coordd.services.control.core_methods import LIST_MAX, VIEWER_LIST_MAX
from coordd.services.control.doctor import NAMES_MAX, WARN, Check, check
from coordd.services.control.rpc import take
from coordd.services.sinks.methods import SinkMethods
from coordd.services.views import objects
from coordd.services.views.run_methods import NONE


class InputMethods(SinkMethods):
    """Dead letters of the cluster: inputs that have failed as often as their job allows."""

    async def deadletter_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        found = await super().deadletter_list(params, caller)
        job = take(params, "job", str, "")
        limit = min(max(1, take(params, "limit", int, 100)), VIEWER_LIST_MAX if caller.role <= VIEWER else LIST_MAX)
        prefix, now = OF_INPUT + (f"{job}:" if job else ""), self._driver.now().wall

        def read(ledger: Ledger) -> list[dict[str, Any]]:
            return [
                _view(key, hold, seen)
                for key, hold in ledger.marks(prefix).items()
                if is_kept(hold, now) and (seen := Seen.read(hold.note)) is not None and seen.is_poisonous
            ]

        mine = await self._ledger.query(read)
        return sorted([*found, *mine], key=lambda view: str(view["at"]), reverse=True)[:limit] if mine else found

    async def deadletter_show(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        key = take(params, "id", str)
        if not key.startswith(OF_INPUT):
            return await super().deadletter_show(params, caller)
        hold, seen = await self._input(key)
        return {**_view(key, hold, seen), "dead": seen.is_poisonous, "shown": None}

    async def deadletter_replay(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        key = take(params, "id", str)
        if not key.startswith(OF_INPUT):
            return await super().deadletter_replay(params, caller)
        await self._forget(key, caller)
        self._audit(caller, "deadletter.replay", key)
        return {"id": key, "run": None, "attempt": None, "state": "waiting"}

    async def deadletter_discard(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        key = take(params, "id", str)
        if not key.startswith(OF_INPUT):
            return await super().deadletter_discard(params, caller)
        note = self._discard_note(params)
        await self._forget(key, caller)
        self._audit(caller, "deadletter.discard", f"{key}: {note}")
        return {"id": key, "run": None, "state": "dead", "discarded": True}

    async def input_lines(self) -> list[Check]:
        """For `doctor`: the jobs with poisonous inputs."""
        now = self._driver.now().wall

        def read(ledger: Ledger) -> Counter[str]:
            found = ledger.marks(OF_INPUT).items()
            kept = {key: Seen.read(hold.note) for key, hold in found if is_kept(hold, now)}
            return Counter(_job_of(key) for key, seen in kept.items() if seen is not None and seen.is_poisonous)

        try:
            jobs = await self._ledger.query(read)
        except UnavailableError:
            return []
        text = ", ".join(f"{count} of {job}" for job, count in jobs.most_common(NAMES_MAX))
        text += ", …" if len(jobs) > NAMES_MAX else ""
        advice = "coordctl deadletter list; discard each when its cause is mended"
        return [check("poisonous inputs", WARN, text, advice)] if jobs else []

    async def _forget(self, key: str, caller: Caller) -> None:
        """The next run that meets the input processes it, and counts from 0."""
        self._may_operate(caller, _job_of(key))
        await self._input(key)
        await self._change(Keep(key=key, held=False, by=caller.name, uid=caller.uid))

    async def _input(self, key: str) -> tuple[Hold, Seen]:
        hold = await self._ledger.query(lambda ledger: ledger.mark(key))
        seen = Seen.read(hold.note) if hold is not None else None
        if hold is None or seen is None or not is_kept(hold, self._driver.now().wall):
            raise RefusedError(f"{key[:200]} is not an input that has failed", kind="unknown_run", hint=NONE)
        return hold, seen


def _job_of(key: str) -> str:
    return key.removeprefix(OF_INPUT).rpartition(":")[0]


def _unescaped(text: str) -> str:
    """A text of a driver, as it was before `coordd.resilience` made it ASCII; a cut one may stay as it is."""
    try:
        told = text.encode("ascii").decode("unicode_escape")
        return visible(told.encode(errors="backslashreplace").decode())  # a file name may be no UTF-8
    except ValueError:
        return text


def _view(key: str, hold: Hold, seen: Seen) -> dict[str, Any]:
    """One of them, as in `deadletter.list`; ``run``: the one that told of the last failure."""
    return {
        "id": key,
        "kind": "input",
        "at": objects.instant(hold.at),
        "reason": f"{_unescaped(seen.input)}: {_unescaped(seen.reason)}",
        "attempts": seen.failures,
        "job": _job_of(key),
        "run": hold.by or None,
        "state": "poisonous" if seen.is_poisonous else "failing",
        "exit_code": None,
        "node": None,
    }
