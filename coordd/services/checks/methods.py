"""The control methods about checks: check.list, check.show, check.run, check.report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordd.core.checks.check import REPORT, TAG, Check
from coordd.core.checks.state import HEALTHY, STATES, UNKNOWN
from coordd.core.jobs.arguments import nearest
from coordd.core.jobs.job import Job
from coordd.core.ledger.rows import OF_REPORTED
from coordd.core.members.membership import ALIVE
from coordd.core.redaction import redact_text
from coordd.errors import RefusedError
from coordd.services.checks import view
from coordd.services.checks.service import Checks
from coordd.services.control.callers import OPERATOR, Caller, Method
from coordd.services.control.hold_methods import Asked
from coordd.services.control.rpc import INVALID_PARAMS, RpcError, take
from coordd.services.publishing.methods import MessageMethods

# The states that somebody may report.
REPORTED = tuple(state for state in STATES if state != UNKNOWN)


class CheckMethods(MessageMethods):
    """The checks of the cluster: this node's, the shared ones, and what the other nodes tell of theirs."""

    checks: Checks | None = None
    boot: Callable[[], list[dict[str, Any]]] = list  # how each boot step is

    def table(self) -> dict[str, Method]:
        """Every method, with the lowest role that may call it."""
        return {
            "check.list": Method(self.check_list),
            "check.show": Method(self.check_show),
            "check.run": Method(self.check_run, changes=True),
            "check.report": Method(self.check_report, changes=True),
            **super().table(),
        }

    async def check_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        rows = [view.row_view(row) for row in self._all().rows()]
        members = {one.name: one.hostname for one in self._driver.node.members.values() if one.state == ALIVE}
        told = await self._relay.ask("checks", "", members)
        for name, body in told.items():
            rows += view.unpacked(body, members[name]) if body else []
        return sorted(rows, key=lambda row: (row["name"], row["node"]))

    async def check_show(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        check = self._check(params)
        row = next(one for one in self._all().rows() if one.check.key == check.key)
        jobs = {
            job.name: then
            for job in self._driver.node.jobs.values()
            for one, then in self._all().uses(job)
            if one.check.key == check.key
        }
        said = {key: getattr(check, key) for key in check.__struct_fields__}
        rule = {key: value for key, value in said.items() if value not in ("", (), None)}
        return {
            **view.row_view(row),
            "found": row.standing.state,
            "worse_in_a_row": row.standing.worse,
            "better_in_a_row": row.standing.better,
            "failed_looks": row.standing.lost,
            "jobs": jobs,
            "rule": rule,
        }

    async def check_run(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        check = self._check(params)
        self._may_touch(check, caller)
        if check.kind == REPORT:
            raise RefusedError(
                f"{check.key} looks at nothing: its state is reported",
                kind="bad_argument",
                hint=f"coordctl check report {check.key} STATE",
            )
        node = self._driver.node
        if not check.is_for(node.settings.tags):  # what it sees would count for those that have the tag
            raise RefusedError(
                f"{check.key} is for nodes with the tag {check.scope.removeprefix(TAG)}, which {node.hostname} does not"
                " have",
                kind="other_node",
                hint="run it on one of them: coordctl node list shows the tags",
            )
        result = await self._all().look_now(check)
        self._audit(caller, "check.run", check.key)
        return {"name": check.key, "seen": result.state, "output": result.text, "perfdata": result.figures}

    async def check_report(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        check, state, said = self._check(params), take(params, "state", str), self._asked(params)
        self._may_touch(check, caller)
        if state not in REPORTED:
            raise RpcError(
                INVALID_PARAMS,
                f"the state {state[:40]!r}: expected one of {', '.join(REPORTED)}",
                kind="invalid_params",
            )
        key = OF_REPORTED + check.key + ("" if check.shared else f"@{self._driver.node.hostname}")
        note = f"{state} {redact_text(said.note)}".strip()
        # "healthy" ends a report, unless the check has nothing but reports.
        held = state != HEALTHY or check.kind == REPORT
        await self._keep(key, caller, Asked(said.until, note) if held else None)
        self._audit(caller, "check.report", Asked(said.until, note).text(check.key))
        self._driver.feed(self._driver.node.look_again)
        return {"name": check.key, "reported": state, "until": params.get("until"), "by": caller.name}

    def _steps_triggers_and_checks(self) -> dict[str, Any]:
        """The boot steps, triggers and checks of `status`."""
        return {
            "boot": self.boot(),
            "triggers": self.triggering.view() if self.triggering is not None else None,
            "checks": view.counts(self.checks.rows()) if self.checks is not None else {},
        }

    def _check_lines(self) -> list[dict[str, str]]:
        """For `doctor`."""
        return view.lines(self.checks.rows()) if self.checks is not None else []

    def _bad_checks(self, job: Job) -> list[str]:
        node = self._driver.node
        reason = node.abstains_from.get(job.name)
        abstains = [f"{node.hostname} abstains from its runs: {reason}."] if reason else []
        return abstains + (view.warnings(self.checks.uses(job)) if self.checks is not None else [])

    def _all(self) -> Checks:
        assert self.checks is not None, "the composition root sets it"
        return self.checks

    def _check(self, params: dict[str, Any]) -> Check:
        name: str = take(params, "name", str)
        known = self._all().known()
        if name not in known:
            raise RefusedError(
                f"no check {name[:130]!r} is known here",
                kind="unknown_check",
                hint=f"a check is NAME (in coordd.toml) or JOB/NAME (in a job's file); {nearest(name, known)}",
            )
        return known[name]

    def _may_touch(self, check: Check, caller: Caller) -> None:
        """Operators may; of a job's check also its owners."""
        if check.job:
            self._may_operate(caller, check.job)
        elif caller.role < OPERATOR:
            raise RefusedError(
                f"{caller.name} may not do that with a check of the node",
                kind="not_permitted",
                hint="this needs the operator group",
            )
