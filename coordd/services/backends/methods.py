"""The control methods of published revisions: config.publish, config.list, config.show, config.rollback."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from coordd.config import tables
from coordd.core.jobs.arguments import nearest
from coordd.errors import RefusedError
from coordd.ports import Published
from coordd.services.applications.methods import OrphanMethods
from coordd.services.backends.published import PublishedSource
from coordd.services.backends.source import Source
from coordd.services.control.callers import ADMIN, OPERATOR, VIEWER, Caller, Method
from coordd.services.control.rpc import INVALID_PARAMS, RpcError, take
from coordd.services.views import objects

T = TypeVar("T")

# Characters of a note.
NOTE_MAX = 500

# What a revision is now.
IN_FORCE, WAITING, EARLIER, PASSED_OVER = "in force", "waiting", "earlier", "passed over"


class RevisionMethods(OrphanMethods):
    """The methods of published revisions. Who publishes chooses what runs on every node, so only administrators do."""

    source: Source | None

    def table(self) -> dict[str, Method]:
        """Every method, with the lowest role that may call it."""
        return {
            "config.publish": Method(self.config_publish, ADMIN),
            "config.list": Method(self.config_list),
            "config.show": Method(self.config_show, OPERATOR),
            "config.rollback": Method(self.config_rollback, ADMIN),
            **super().table(),
        }

    def _jobs_from(self, job: str) -> str:
        return self.source.told(job) if self.source is not None else ""

    async def config_publish(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        source, note = self._published(), _note(params)
        try:
            texts = tables.checked_texts(params.get("files"))
        except ValueError as exc:
            raise RpcError(INVALID_PARAMS, f"files: {exc}", kind="invalid_params") from exc
        if not texts:
            raise RefusedError(
                "expected at least one job file, found none: nothing was published",
                kind="bad_argument",
                hint="an empty revision would end every job; coordctl job suspend --all stops all of them",
            )
        return await self._publish(source, texts, caller, note, "config.publish")

    async def config_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        source = self._published()
        found = await self._stored(source.store.listed, looks=caller.role <= VIEWER)
        newest = max([one.number for one in found], default=0)
        return [_view(one, source, newest) for one in found]

    async def config_show(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        source = self._published()
        number = take(params, "number", int, 0) or source.in_force.number
        found = await self._read(source, number)
        newest = await self._stored(source.store.newest)
        return {**_view(found, source, newest), "files": found.texts}

    async def config_rollback(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        source, note = self._published(), _note(params)
        listed = await self._stored(source.store.listed)
        newest, in_force = max([one.number for one in listed], default=0), source.in_force.number
        number: int = take(params, "number", int, 0)
        named = bool(number)
        if not number:  # what a newest revision that is not in force would replace, or the one before
            below = in_force + 1 if newest > in_force else in_force
            number = max([one.number for one in listed if one.number < below], default=0)
        if not number:
            raise RefusedError("there is no earlier revision", kind="unknown_revision", hint="coordctl config list")
        found = await self._read(source, number)
        texts = await self._stored(partial(source.texts_again, found, named=named))
        note = note or f"as revision {number}"
        return await self._publish(source, texts, caller, note, "config.rollback")

    async def _publish(
        self, source: PublishedSource, texts: dict[str, str], caller: Caller, note: str, method: str
    ) -> dict[str, Any]:
        before = source.jobs.jobs
        made, found = await source.publish(texts, by=caller.name, uid=caller.uid, note=note)
        self._audit(caller, method, f"revision {made.number}: {made.jobs} jobs, {made.digest[:12]}")
        jobs = found.jobs
        return {
            "number": made.number,
            "digest": made.digest,
            "jobs": made.jobs,
            "added": sorted(set(jobs) - set(before)),
            "removed": sorted(set(before) - set(jobs)),
            "changed": sorted(name for name in jobs if name in before and jobs[name].digest != before[name].digest),
            "in_force": source.in_force.number,
        }

    async def _read(self, source: PublishedSource, number: int) -> Published:
        listed = [one.number for one in await self._stored(source.store.listed)]
        if number not in listed:
            hint = f"coordctl config list shows them; {nearest(str(number), map(str, listed))}"
            raise RefusedError(f"there is no revision {number}", kind="unknown_revision", hint=hint)
        return await self._stored(partial(source.store.read, number))

    async def _stored(self, read: Callable[[], T], *, looks: bool = False) -> T:
        """Ask the store, which may hang: in the few threads of look-ups, not in those that the daemon needs."""
        return await self._lookups.do(lambda _: read(), looks=looks)

    def _published(self) -> PublishedSource:
        if not isinstance(self.source, PublishedSource):
            backend = self.source.backend if self.source is not None else "files"
            raise RefusedError(
                f"this node does not take its jobs from published revisions: its [jobs] backend is {backend}",
                kind="not_published",
                hint='[jobs] backend = "redis" on every node, then a restart of each',
            )
        return self.source


def _view(one: Published, source: PublishedSource, newest: int) -> dict[str, Any]:
    in_force = source.in_force.number
    state = EARLIER if one.number < in_force else WAITING if one.number == newest else PASSED_OVER
    if one.number == in_force:
        state = IN_FORCE
    return {
        "number": one.number,
        "state": state,
        "at": objects.instant(one.at),
        "by": one.by,
        "uid": one.uid,
        "note": one.note or None,
        "jobs": one.jobs,
        "digest": one.digest,
        "waits": source.waits if state == WAITING else [],
    }


def _note(params: dict[str, Any]) -> str:
    note: str = take(params, "note", str, "").strip()
    if len(note) > NOTE_MAX or not note.isprintable():
        raise RpcError(
            INVALID_PARAMS, f"the note must be one line of at most {NOTE_MAX} characters", kind="invalid_params"
        )
    return note
