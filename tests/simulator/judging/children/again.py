"""RR: after a run that a person has run once more with its children, each of them runs once more, once.

The judge keeps its own account: which plan each replay brought, and what each opening found in the rows. A child may
run once more only after all its parents have ended, and once for a plan, unless the ledger went back. When all is calm
no plan is left, and each run after the root has begun since, or has a reason not to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordd.core.groups.expand import group_of
from coordd.core.jobs.after import rerun_of
from coordd.core.ledger.requests import Replay, Rerun
from coordd.core.ledger.rerun.plan import Item, read
from coordd.core.ledger.rows import OF_RERUN
from coordd.core.ledger.words import FAILURE, LOST, OK, PENDING, RETRY, REVOKED, SUCCESS, TERMINAL
from simulator.policies import RERUNS
from simulator.terms import RENEW

if TYPE_CHECKING:
    from coordd.core.ledger.answers import Answer
    from coordd.core.ledger.rows import Row
    from coordd.core.ledger.runner_requests import Request
    from simulator.world import Host, World

FITS = {"success": (SUCCESS,), "failure": (FAILURE, LOST), "done": tuple(TERMINAL)}

# When all is calm, a run is opened this soon (seconds) after its parents' ends.
LATE_S = 45.0 + RENEW


class Again:
    """The re-runs with children of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._plans: dict[str, tuple[int, list[Item], int]] = {}  # root -> attempt, items, setbacks when it was made
        self._opened: set[tuple[str, int, str]] = set()  # (root, its attempt, run)
        self._since: dict[str, float] = {}  # runs that are late -> since when, in the world's time

    def operation(self, _: Host, request: Request[Any], answer: Answer, before: Row | None, row: Row | None) -> None:
        """Keep each plan, and check each opening."""
        if RERUNS not in self.world.plan.kinds or answer.word != OK:
            return
        if isinstance(request, Replay):
            if request.whole:
                self._again(before, row)
            self._plans.pop(request.run, None)
            if request.children:
                self._plans[request.run] = (answer.attempt, read(request.children), len(self.world.server.setbacks))
        elif isinstance(request, Rerun):
            self._opens(request, row)

    def _again(self, before: Row | None, row: Row | None) -> None:
        assert before is not None
        assert row is not None
        self.world.acts["run once more"] += 1
        if before.state not in TERMINAL or before.state == REVOKED:
            self.world.violate(f"RR {before.run} is run once more, and it is {before.state}")
        if rerun_of(row.by) != (f"{before.run}/{before.attempt}", "a person") or row.attempt <= before.attempt:
            self.world.violate(f"RR {before.run}/{row.attempt} does not say which attempt it repeats: {row.by}")

    def _opens(self, request: Rerun, row: Row | None) -> None:
        world, run = self.world, request.of.run
        world.acts["rerun"] += 1
        known = self._plans.get(request.root)
        if known is None or known[2] != len(world.server.setbacks):
            return  # the ledger has another plan than this account, or has forgotten some of it
        attempt, items, _ = known
        if (request.root, attempt, run) in self._opened:
            world.violate(f"RR {run} was opened twice for {request.root}/{attempt}")
        self._opened.add((request.root, attempt, run))
        item = next((one for one in items if run in one.runs.rows()), None)
        if item is None:
            world.violate(f"RR {run} does not follow {request.root}")
            return
        for parent in self._parents(item):
            if parent.state not in TERMINAL:
                world.violate(f"RR {run} was opened for {request.root}, and {parent.run} has not ended")
        assert row is not None
        if not row.by.endswith(f"{request.root}/{attempt} by a person"):
            world.violate(f"RR {run} does not say for whom it runs once more: {row.by}")

    def _parents(self, item: Item) -> list[Row]:
        found = [self.world.server.row(run) for of_job in item.parents for runs in of_job for run in runs.rows()]
        return [row for row in found if row is not None]

    # ---- after the faults

    def unsettled(self) -> bool:
        """True if a run is still to be opened."""
        return bool(self._due())

    def wait(self) -> None:
        """After the faults each run is opened soon."""
        self._since = {run: self._since.get(run, self.world.now) for run in self._due()}
        for run, since in self._since.items():
            if self.world.now - since > LATE_S:
                self.world.violate(
                    f"RR {run} has not begun since its parent ran once more, {self.world.now - since:.0f} s ago"
                )

    def end(self) -> None:
        """Long after the faults nothing is left."""
        for run in self._due():
            self.world.violate(f"RR {run} has not begun since its parent ran once more")
        if RERUNS in self.world.plan.kinds:
            for key in self.world.ledger.marks(OF_RERUN):
                if all(row is None or row.state in TERMINAL for row in map(self.world.server.row, self._named(key))):
                    self.world.violate(f"RR the plan of {key} is left, and all its runs have ended")

    def _named(self, key: str) -> list[str]:
        root = key.removeprefix(OF_RERUN)
        items = self._plans[root][1] if root in self._plans else []
        return [root, *[row.run for item in items for row in self._parents(item)]]

    def _due(self) -> list[str]:
        """The runs right after a root that have not begun since it ended as they need it."""
        found = []
        for root, (_, items, setbacks) in self._plans.items():
            first = self.world.server.row(root)
            if first is None or first.state not in TERMINAL or setbacks != len(self.world.server.setbacks):
                continue
            for item in items:
                alone = all([one.run for one in of_job] == [group_of(root)] for of_job in item.parents)
                if not alone or group_of(root) != root or first.state not in FITS[item.on]:
                    continue
                if group_of(item.runs.run).partition("@")[0].partition("#")[0] not in self.world.jobs:
                    continue
                rows = [(run, self.world.server.row(run)) for run in item.runs.rows()]
                found += [run for run, row in rows if not _has_begun(row, root, first)]
        return found


def _has_begun(row: Row | None, root: str, first: Row) -> bool:
    if row is None:
        return False
    mine = f"{root}/{first.attempt} by " in row.by
    return mine or row.state in (PENDING, RETRY, REVOKED) or row.received_at >= first.ended_at
