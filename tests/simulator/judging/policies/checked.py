"""CK: a node that abstains by a bad check is granted nothing of the job, and a job is suspended exactly while its check
is known to be bad.

What a node knows is the real service's; what a check found is drawn, and good at the end. Then each check that nodes
share has a node that looks, and no job is suspended by it any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordd.core.checks.check import ABSTAIN, SUSPEND, TAG, Check
from coordd.core.checks.reactions import SUSPENDER
from coordd.core.checks.state import HEALTHY, Standing, unpack
from coordd.core.ledger.requests import Claim, Keep, ListOpen, Suspend
from coordd.core.ledger.rows import OF_CHECK
from coordd.core.ledger.words import GRANTED, OK
from simulator.machines.checks import GOOD_AT_S, SHARED, USES
from simulator.policies import CHECKS
from simulator.terms import CHAOS_S

if TYPE_CHECKING:
    from coordd.core.ledger.answers import Answer
    from coordd.core.ledger.rows import Row
    from coordd.core.ledger.runner_requests import Request
    from simulator.world import Host, World

# A node looks at what it knows every half second, and a claim may be under way for its timeout.
KNOWN_S = 3.0

# Nobody has written how a shared check stands for that long (seconds): nobody looks.
SILENT_S = 30.0


class Checked:
    """The checks of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._bad_since: dict[int, float] = {}  # machine -> since when its own check is known there to be bad
        self._resumed: set[str] = set()  # jobs that a person has resumed while the check is bad
        self._written: dict[str, float] = {}  # shared check -> when its standing was written last

    def operation(self, host: Host, request: Request[Any], answer: Answer, before: Row | None, row: Row | None) -> None:
        """Note what is written about checks, and check each grant."""
        if CHECKS not in self.world.plan.kinds:
            return
        for there in self.world.hosts:
            self._note(there)
        if isinstance(request, Keep) and answer.word == OK and request.key.startswith(OF_CHECK):
            self._written[request.key.removeprefix(OF_CHECK)] = self.world.now
        if isinstance(request, Suspend) and answer.word == OK and request.job in USES:
            if request.suspended:
                self._resumed.discard(request.job)
            elif self._standing(USES[request.job].check).is_bad:
                self._resumed.add(request.job)
                if request.by.startswith(SUSPENDER):
                    self.world.violate(f"CK {request.job} was resumed by {request.by}, which is known to be bad")
        if isinstance(request, Claim) and answer.word == GRANTED and row is not None and row.job in USES:
            fresh = before is None or before.nonce != request.nonce
            if fresh:
                self._granted(host, row)

    def _note(self, host: Host) -> None:
        seat = host.daemon.checks if host.daemon is not None and not host.daemon.paused else None
        if seat is None or not seat.checks._own.get("room", Standing()).is_bad:
            self._bad_since.pop(host.index, None)
        else:
            self._bad_since.setdefault(host.index, self.world.now)

    def _granted(self, host: Host, row: Row) -> None:
        use = USES[row.job]
        since = self._bad_since.get(host.index)
        if use.then == ABSTAIN and since is not None and self.world.now - since > KNOWN_S:
            for_s = self.world.now - since
            self.world.violate(f"CK {row.run} was granted to {host.name}, which abstains for {for_s:.1f} s")
        if use.then == SUSPEND and self._standing(use.check).is_bad and row.job not in self._resumed:
            self.world.violate(f"CK {row.run} was granted while its check {use.check} is known to be bad")

    def _standing(self, check: str) -> Standing:
        hold = self.world.ledger.ask(ListOpen(jobs=(), limit=1)).holds.get(OF_CHECK + check)
        return unpack(hold.note) if hold is not None else Standing()

    def wait(self) -> None:
        """A node that looks for all and is gone is replaced, while one is ready that may look."""
        if CHECKS not in self.world.plan.kinds:
            return
        for name, check in SHARED.items():
            ready = [host.daemon.ready_at for host in self._lookers(check) if host.daemon is not None]
            since = max(CHAOS_S, self._written.get(name, 0.0), min(ready, default=float("inf")))
            if self.world.now - since > SILENT_S:
                self.world.violate(f"CK nobody looks at {name} for {self.world.now - since:.0f} s")

    def _lookers(self, check: Check) -> list[Host]:
        """The machines that are there and may look at this check."""
        tag, tags = check.scope.removeprefix(TAG), self.world.plan.tags
        there = [host for host in self.world.hosts if not host.gone]
        return [host for host in there if tag in tags[host.index]] if check.scope.startswith(TAG) else there

    def unsettled(self) -> bool:
        """True if a check or a job is not yet as it must be."""
        return bool(self._wrong())

    def _wrong(self) -> str:
        """Which check or job is not as it must be when all checks are good for long; "" if none."""
        if CHECKS not in self.world.plan.kinds or self.world.now < GOOD_AT_S:
            return ""
        for name, check in SHARED.items():
            if not self._lookers(check):
                continue
            silent_s = self.world.now - self._written.get(name, 0.0)
            if silent_s > SILENT_S:
                return f"nobody looks at {name} for {silent_s:.0f} s"
            if self._standing(name).state != HEALTHY:
                return f"{name} is still {self._standing(name).state}"
            for job, use in USES.items():
                if use.check == name and use.then == SUSPEND and self.world.server.suspended(job):
                    return f"{job} is still suspended, and its check {name} is good"
        return ""

    def end(self) -> None:
        """Long after the faults all checks are good, and known to be."""
        if wrong := self._wrong():
            self.world.violate(f"CK {wrong}")
