"""P: nothing starts of a suspended job, or while all jobs are stopped. DR: a drained node is granted nothing.

The judge keeps its own account of what people have held: what the ledger has said ok to, and until when. A ledger that
goes back forgets what came after that time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordd.core.ledger.requests import Claim, Keep, Suspend
from coordd.core.ledger.rows import ALL, OF_JOB, OF_NODE
from coordd.core.ledger.runner_requests import Gate
from coordd.core.ledger.words import GRANTED, OK, RECEIVED

if TYPE_CHECKING:
    from coordd.core.ledger.answers import Answer
    from coordd.core.ledger.rows import Row
    from coordd.core.ledger.runner_requests import Request
    from simulator.world import Host, World


class Holds:
    """What people hold in one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._said: list[tuple[float, str, float | None]] = []  # (when, key, until when; None: it has ended)
        self._stand: dict[str, float] = {}  # key -> until when, by the ledger's clock; 0.0: until somebody ends it
        self._setbacks = 0

    @property
    def all_stand(self) -> bool:
        """True while all jobs are stopped."""
        self._look_back()  # its end may have come since the last operation
        return ALL in self._stand

    def operation(self, host: Host, request: Request[Any], answer: Answer, before: Row | None, row: Row | None) -> None:
        """Note what people hold, and check each grant and each gate."""
        self._look_back()
        if isinstance(request, Keep | Suspend) and answer.word == OK:
            held = request.held if isinstance(request, Keep) else request.suspended
            key = request.key if isinstance(request, Keep) else OF_JOB + request.job
            self._say(key, request.until if held else None)
        if row is None:
            return
        if isinstance(request, Claim) and answer.word == GRANTED and (before is None or before.nonce != request.nonce):
            if OF_NODE + host.name in self._stand:
                self.world.violate(f"DR {row.run} was granted to {host.name}, which is drained")
            self._nothing_starts(row, "granted")
        if isinstance(request, Gate) and answer.word == OK and before is not None and before.state == RECEIVED:
            self._nothing_starts(row, "let through its gate")

    def _nothing_starts(self, row: Row, what: str) -> None:
        if OF_JOB + row.job in self._stand:
            self.world.violate(f"P {row.run} was {what} while its job is suspended")
        if self.all_stand:
            self.world.violate(f"P {row.run} was {what} while all jobs are stopped")

    def _say(self, key: str, until: float | None) -> None:
        self._said.append((self.world.now, key, until))
        self._count(key, until)

    def _count(self, key: str, until: float | None) -> None:
        self._stand.pop(key, None)
        if until is not None:
            self._stand[key] = until

    def _look_back(self) -> None:
        """Forget what a ledger that went back has forgotten, and what its clock has ended."""
        setbacks, wall = self.world.server.setbacks, self.world.server.wall()
        for setback in setbacks[self._setbacks :]:
            self._said = [one for one in self._said if one[0] <= setback.kept_to]
            self._stand.clear()
            for _, key, until in self._said:
                self._count(key, until)
        self._setbacks = len(setbacks)
        for key, until in list(self._stand.items()):
            if 0.0 < until <= wall:
                self._say(key, None)
