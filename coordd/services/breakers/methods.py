"""The control methods about breakers: breaker.list, breaker.reset and breaker.isolate."""

from __future__ import annotations

from typing import Any

from coordd.core.ledger.requests import ListOpen
from coordd.core.ledger.rows import OF_BREAKER, OF_ISOLATED, OF_JOB, Hold
from coordd.errors import RefusedError, UnavailableError
from coordd.services.breakers import view
from coordd.services.breakers.view import JobBreaker
from coordd.services.control.callers import OPERATOR, Caller, Method
from coordd.services.control.hold_methods import HoldMethods
from coordd.services.control.rpc import take
from coordd.services.ledger import boottime

# So many breakers are named in an error.
NAMED_MAX = 20


class BreakerMethods(HoldMethods):
    """The breakers of jobs are those of the cluster; those of bus, ledger and services are this node's."""

    def table(self) -> dict[str, Method]:
        """Every method, with the lowest role that may call it."""
        return {
            "breaker.list": Method(self.breaker_list),
            "breaker.reset": Method(self.breaker_reset, changes=True),
            "breaker.isolate": Method(self.breaker_isolate, changes=True),
            **super().table(),
        }

    async def breaker_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        now = self._driver.now()
        of_jobs = await self._job_breakers()
        connections = [view.connection_view(breaker, now.mono, now.wall) for breaker in self._driver.breakers]
        return connections + [view.job_view(one) for one in of_jobs.values()]

    async def breaker_reset(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        name: str = take(params, "name", str)
        if (job := self._job_of(name, caller)) is not None:
            await self._keep(OF_ISOLATED + job, caller, None)
            await self._keep(OF_BREAKER + job, caller, None)
            self._audit(caller, "breaker.reset", name)
            self._driver.feed(self._driver.node.look_again)
            return view.job_view((await self._job_breakers())[job])
        for breaker in self._driver.breakers:
            if breaker.name == name:
                self._only_operators(caller)
                breaker.reset(boottime())
                self._audit(caller, "breaker.reset", name)
                if name == "ledger":
                    self._driver.feed(self._driver.node.look_again)
                now = self._driver.now()
                return view.connection_view(breaker, now.mono, now.wall)
        raise self._unknown(name)

    async def breaker_isolate(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        name: str = take(params, "name", str)
        job = self._job_of(name, caller)
        if job is None:
            if name in (breaker.name for breaker in self._driver.breakers):
                of_service = name not in (breaker.name for breaker in self._driver.own_breakers.connections)
                raise RefusedError(
                    f"the breaker of the {name.replace(':', ' ')} cannot be held open by hand",
                    kind="bad_argument",
                    hint="take its [[service]] out of coordd.toml, then coordctl reload: that ends it on this node"
                    if of_service
                    else "coordctl node drain: then this node takes no new runs",
                )
            raise self._unknown(name)
        said = self._asked(params)
        await self._keep(OF_ISOLATED + job, caller, said)
        self._audit(caller, "breaker.isolate", said.text(name))
        self._driver.feed(self._driver.node.look_again)
        return view.job_view((await self._job_breakers())[job])

    async def _job_breakers(self) -> dict[str, JobBreaker]:
        """As the ledger has them; while it is away, as the last sweep knows them."""
        node = self._driver.node
        holds: dict[str, Hold]
        try:
            holds = await self._ledger.query(lambda ledger: ledger.ask(ListOpen(jobs=(), limit=1)).holds)
        except UnavailableError:
            holds = dict(node.drains.holds)
        return view.of_jobs(node.jobs, holds)

    def _job_of(self, name: str, caller: Caller) -> str | None:
        """The job whose breaker has that name, if the caller may operate it; None if no job's has that name."""
        job = name.removeprefix(OF_JOB)
        known = self._driver.node.jobs.get(job)
        if not name.startswith(OF_JOB) or known is None:
            return None
        self._may_operate(caller, job)
        if known.breaker is None:
            raise RefusedError(
                f"{job} has no breaker",
                kind="unknown_breaker",
                hint=f"write [breaker] into its job file; coordctl job suspend {job} stops it by hand",
            )
        return job

    def _only_operators(self, caller: Caller) -> None:
        if caller.role < OPERATOR:
            raise RefusedError(
                f"{caller.name} may not reset a breaker of this node",
                kind="not_permitted",
                hint="this needs the operator group",
            )

    def _unknown(self, name: str) -> RefusedError:
        jobs = view.of_jobs(self._driver.node.jobs, {})
        known = [*[breaker.name for breaker in self._driver.breakers], *[one.name for one in jobs.values()]]
        return RefusedError(
            f"no breaker {name!r}", kind="unknown_breaker", hint=f"there are {', '.join(known[:NAMED_MAX])}"
        )
