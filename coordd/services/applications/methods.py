"""The control method `orphans`: what the ledger and the cluster managers do not both know."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from coordd.core.jobs.applications import ALIVE, Application, cluster_mark, run_mark
from coordd.core.ledger.rows import Row
from coordd.core.ledger.words import PENDING, RECEIVED, RETRY, STARTED, UNKNOWN
from coordd.errors import CoorddError, RefusedError
from coordd.ports import Applications, Ledger
from coordd.services.applications.reconciling import LOOKUP_S, Reconciling
from coordd.services.control.callers import VIEWER, Caller, Method
from coordd.services.control.lookups import Work
from coordd.services.guarding.inputs import InputMethods
from coordd.services.ledger import boottime

# The states in which a run may have an application.
LIVE = (STARTED, UNKNOWN, RECEIVED, RETRY, PENDING)

# Runs that are read for each state, or for each state of each job, and the newest runs of each job that ended.
ROWS_MAX = 1000

# Nothing was left out, so this is certain.
NO_RUN = "no run of the ledger has its tag"


class OrphanMethods(InputMethods):
    """Applications that no live run knows, and runs whose application is gone."""

    reconciling: Reconciling | None = None

    def table(self) -> dict[str, Method]:
        """Every method, with the lowest role that may call it."""
        return {"orphans": Method(self.orphans), **super().table()}

    async def orphans(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        reconciling = self.reconciling
        assert reconciling is not None, "the composition root sets it"
        jobs = {name: job for name, job in self._driver.node.jobs.items() if job.drives_elsewhere}
        looks = caller.role <= VIEWER

        live, ended, missing = await self._ledger.query(partial(read, sorted(jobs)))
        found: dict[str, list[Application]] = {}
        problems: list[str] = []
        shown: set[str] = set()  # jobs whose cluster manager has answered

        def look(name: str, _: Work) -> None:
            """Runs in a thread: each cluster manager is asked once."""
            try:
                manager: Applications | None = reconciling.manager(jobs[name], None)
                if manager is None:
                    return
                if manager.place not in found:
                    found[manager.place] = manager.of_cluster(cluster_mark(reconciling.cluster))
                shown.add(name)
            except CoorddError as exc:
                if str(exc) not in problems:
                    problems.append(str(exc))

        over_at, unasked = boottime() + LOOKUP_S, []
        for name in sorted(jobs):
            left_s = over_at - boottime()
            if left_s <= 0.0:
                unasked.append(name)
                continue
            try:
                await self._lookups.do(partial(look, name), looks=looks, limit_s=left_s)
            except RefusedError:
                problems.append(f"the cluster manager of {name} did not answer within {left_s:.3g} s")
        if unasked:
            time = f"the {LOOKUP_S:g} s for all of them were over"
            named = ", ".join(unasked[:5]) + (", …" if len(unasked) > 5 else "")
            problems.append(f"the cluster managers of {named} were not asked: {time}; ask again")
        marks = {run_mark(reconciling.cluster, row.run): row for row in (*ended, *live)}
        lost = [view for place in sorted(found) for view in strays(place, found[place], marks, missing)]
        everything = {one.id: one for place in found.values() for one in place}
        runs = [
            {"id": row.run, "job": row.job, "state": row.state, "node": row.node, "attempt": int(row.attempt),
             "application_id": row.application_id, "problem": problem}
            for row in live
            if row.job in shown and (problem := what_is_wrong(row, everything, reconciling.why(row.run)))
        ]  # fmt: skip
        return {"applications": lost, "runs": runs, "problems": problems}


def read(jobs: Sequence[str], ledger: Ledger) -> tuple[list[Row], list[Row], str]:
    """Live runs, the newest ended ones of these jobs, and what it means that none of them has a tag.

    Many runs of other jobs must not hide those that may have an application: a person would be told to end it.
    """
    live: dict[str, Row] = {}
    many: list[str] = []  # states with more runs than are read
    cut: list[str] = []  # jobs with more runs in one state than are read
    for state in LIVE:
        rows = ledger.runs(state=state, limit=ROWS_MAX)
        live |= {row.run: row for row in rows}
        if len(rows) < ROWS_MAX:
            continue
        many.append(state)
        for job in jobs:
            of_job = ledger.runs(job=job, state=state, limit=ROWS_MAX)
            live |= {row.run: row for row in of_job}
            if len(of_job) == ROWS_MAX and job not in cut:
                cut.append(job)
    newest = [ledger.runs(job=job, limit=ROWS_MAX) for job in jobs]
    ended = [row for rows in newest for row in rows if row.state not in LIVE]
    if cut:
        named = ", ".join(cut[:5]) + (", …" if len(cut) > 5 else "")
        missing = f"cannot be told: a live run of {named} may have its tag, and only {ROWS_MAX:,} of a state are read"
    elif many:
        missing = (
            f"no run of this node's jobs has its tag; more than {ROWS_MAX:,} are {many[0]}, and one of a job that this"
            " node does not have may"
        )
    elif any(len(rows) == ROWS_MAX for rows in newest):
        missing = f"no live run has its tag, nor the newest {ROWS_MAX:,} of each job"
    else:
        missing = NO_RUN
    return list(live.values()), ended, missing


def strays(
    place: str, found: Sequence[Application], marks: dict[str, Row], missing: str = NO_RUN
) -> list[dict[str, Any]]:
    """The living applications that no live run knows. ``missing``: what is said of one whose tag no run has."""
    views = []
    for one in found:
        row = marks.get(one.run_mark)
        problem = ""
        if one.state != ALIVE:
            continue
        if row is None:
            problem = missing
        elif row.state not in LIVE:
            problem = f"its run is {row.state}"
        elif row.state == STARTED and row.application_id not in ("", one.id):
            problem = f"its run follows {row.application_id}"
        if problem:
            views.append(
                {"id": one.id, "place": place, "run": row.run if row is not None else None, "name": one.name,
                 "attempt": one.attempt, "token": one.token, "problem": problem}
            )  # fmt: skip
    return views


def what_is_wrong(row: Row, found: dict[str, Application], looked_up: str) -> str:
    """Why a run is an orphan; "" if it has what it says."""
    if row.state == UNKNOWN:
        return looked_up or "its end is unknown, and a person says how it ended"
    if row.state != STARTED or not row.application_id:
        return ""
    one = found.get(row.application_id)
    if one is None:
        return f"the cluster manager does not show {row.application_id}"
    return "" if one.state == ALIVE else f"{one.id} has ended there: {one.state}"
