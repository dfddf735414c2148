"""What becomes of breakers is journalled: once for each change, and again after a start while it is not closed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from coordd.core.breaker import Breaker as Connection
from coordd.core.ledger.breaker.text import HALF_OPEN, OPEN, State
from coordd.core.ledger.rows import OF_BREAKER, OF_ISOLATED, Hold
from coordd.core.ledger.words import NEVER
from coordd.core.ready import Now
from coordd.core.wire.events import BreakerChanged
from coordd.services.breakers.changes import BreakerChanges
from coordd.services.breakers.view import of_jobs
from services.breakers.test_view import WALL, sales, state


class Machine:
    """A node's driver; ``told`` is its journal."""

    def __init__(self) -> None:
        self.holds: dict[str, Hold] = {}
        self.node = SimpleNamespace(identity_from=0.0, stamp=lambda: 7)
        self.ledger = Connection("ledger")
        self.breakers = (self.ledger,)
        self.seconds = 0.0
        self.told: list[BreakerChanged] = []
        self.tell = self.told.append
        self.changes = BreakerChanges(self)  # type: ignore[arg-type]  # all that it asks of a driver

    def now(self) -> Now:
        return Now(self.seconds, WALL + self.seconds)

    def keeps(self, kept: State | None) -> None:
        self.holds.pop(OF_BREAKER + "sales", None)
        if kept is not None:
            self.holds[OF_BREAKER + "sales"] = Hold(by="", note=kept.text())

    def look(self) -> list[tuple[Any, ...]]:
        """The next look, a second later; what it tells."""
        self.seconds += 1.0
        self.told.clear()
        self.changes.look(of_jobs({"sales": sales()}, self.holds))
        return [(one.breaker, one.state, one.since - WALL, one.trips) for one in self.told]

    def fail(self) -> None:
        while not self.ledger.is_open:
            self.ledger.failed(self.ledger.allow(self.seconds), "no answer", self.seconds, 1.0)


def test_each_change_of_a_job_s_breaker_is_told_once_with_the_ledger_s_instant() -> None:
    machine = Machine()
    machine.keeps(state(OPEN))
    assert machine.look() == [("job:sales", "open", 0.0, 1)]
    assert "open since" in machine.told[0].reason
    assert machine.look() == []
    machine.keeps(state(HALF_OPEN, since=WALL + 900))
    assert machine.look() == [("job:sales", "half_open", 900.0, 1)]
    machine.keeps(state(OPEN, trips=2, since=WALL + 910))
    assert machine.look() == [("job:sales", "open", 910.0, 2)]
    machine.keeps(None)
    assert machine.look() == [("job:sales", "closed", 910.0, 0)], "it says what has ended"
    assert machine.look() == []


def test_one_that_a_person_holds_open_is_told_since_then() -> None:
    machine = Machine()
    machine.holds[OF_ISOLATED + "sales"] = Hold(by="ann", at=WALL + 50)
    assert machine.look() == [("job:sales", "isolated", 50.0, 0)]
    machine.holds.clear()
    assert machine.look() == [("job:sales", "closed", 50.0, 0)]


def test_before_the_first_sweep_nothing_is_known_of_jobs() -> None:
    machine = Machine()
    machine.keeps(state(OPEN))
    machine.node.identity_from = NEVER
    assert machine.look() == []


def test_one_of_the_node_is_open_until_it_works_again_however_often_it_is_tried() -> None:
    machine = Machine()
    machine.fail()
    assert machine.look() == [("ledger", "open", 1.0, 1)]
    for _ in range(3):
        machine.seconds += 60.0
        machine.ledger.failed(machine.ledger.allow(machine.seconds), "no answer", machine.seconds, 1.0)
        assert machine.look() == []
    machine.ledger.restored(machine.seconds)
    assert machine.look() == [("ledger", "closed", 1.0, 4)]


def test_one_that_opens_and_closes_between_two_looks_is_told() -> None:
    machine = Machine()
    machine.fail()
    machine.ledger.restored(machine.seconds)
    assert machine.look() == [("ledger", "open", 1.0, 1), ("ledger", "closed", 1.0, 1)]
    assert machine.look() == []
