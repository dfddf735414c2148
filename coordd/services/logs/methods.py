"""The control method `run.logs`: the output of an attempt, from the node that ran it, asked for on any node."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from coordd.core.jobs.job import job_of
from coordd.errors import RefusedError
from coordd.services.audit import Audit
from coordd.services.control.callers import OPERATOR, VIEWER, Caller, Method
from coordd.services.control.rpc import take
from coordd.services.following import groups
from coordd.services.logs.answering import Answering
from coordd.services.logs.files import end_of
from coordd.services.logs.questions import LOG, OPERATES, OWNS, Reader
from coordd.services.logs.reading import Following, Found, Reading, Whole
from coordd.services.views.run_methods import RunMethods

# How many bytes one answer has, from the end: as a rule, and at most.
END_BYTES = 256 * 1024
END_BYTES_MAX = 768 * 1024


class LogMethods(RunMethods):
    """Reads logs for callers who operate the job. The other node checks that again."""

    _reading: Reading

    def table(self) -> dict[str, Method]:
        """Every method, with the lowest role that may call it."""
        return {"run.logs": Method(self.run_logs, logs=True), **super().table()}

    def _read_logs(self, audit: Audit | None, unsigned: str) -> None:
        """Begin to read, and to answer other nodes. ``unsigned``: why other nodes get nothing."""
        here = Answering(self._driver.node, self._log_dir, audit)
        here.unsigned = unsigned
        self._relay.serve(LOG, here.answer)
        self._reading = Reading(self._driver.node, self._relay, self._ledger, here)

    async def run_logs(self, params: dict[str, Any], caller: Caller) -> Any:
        if caller.role <= VIEWER:
            self._may_operate(caller, job_of(take(params, "id", str)))
        run = await self._run_of(params)
        found = await self._reading.found(run)
        if found is None:
            expand = groups.expanded(run, self._driver.node.jobs.get(job_of(run)))
            if expand is not None:
                raise RefusedError(groups.one_of_them(run, expand.count), kind="unknown_run")
            raise RefusedError(f"no run {run!r}", kind="unknown_run", hint="coordctl run list shows all runs")
        attempt = take(params, "attempt", int, None)
        if attempt is not None and not 0 <= attempt <= max(found.newest, 0):
            raise RefusedError(f"{run} has no attempt {attempt}; the newest is {found.newest}", kind="no_log")
        reader = self._reader(caller, job_of(run))
        follow, limit = take(params, "follow", bool, False), take(params, "bytes", int, 0)
        if follow:
            return self._follow(found, attempt, reader, max(0, limit))
        limit = min(limit, END_BYTES_MAX) if limit > 0 else END_BYTES
        end = await self._end_of_log(found, attempt, reader, limit + 1)  # one more tells whether the log is longer
        data, cut = end_of(end.data, limit)
        here = end.host == self._reading.hostname
        where = {"node": end.host, "here": here, "copy": end.copy, "path": end.path}
        return {"id": run, "attempt": end.attempt, **where, "text": data.decode(errors="replace"), "cut": cut}

    async def _end_of_log(self, found: Found, attempt: int | None, reader: Reader, limit: int) -> Whole:
        return await self._reading.end(found, attempt, reader, limit)

    async def _follow(
        self, found: Found, attempt: int | None, reader: Reader, tail: int
    ) -> AsyncGenerator[dict[str, Any], None]:
        following = Following(self._reading, found.row.run, attempt, reader, tail)
        async for message in following.messages(found):
            yield message

    def _reader(self, caller: Caller, job: str) -> Reader:
        """The caller as another node is told of them."""
        if caller.role >= OPERATOR:
            return Reader(caller.name, caller.uid, OPERATES)
        known = self._driver.node.jobs.get(job)
        return Reader(caller.name, caller.uid, OWNS, known.owner if known is not None else "")
