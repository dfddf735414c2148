"""The line for `systemctl status`: it says what a person must know of this node, its ledger, its clock and its runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.small_cluster import Lone, job

from coordd.core.context import SKEW_MAX_S
from coordd.core.ledger.words import RECOVERING
from coordd.core.ready import Now
from coordd.services.health import Health
from coordd.services.ledger import CONNECTED, FOREIGN
from coordd.services.views.troubles import NOT_ALL, Found, Trouble


class Machine:
    """The health of one daemon that is ready, without its ledger and its bus."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.lone = Lone(job()).ready()
        self.ledger = SimpleNamespace(state=CONNECTED, recovering_s=0.0)
        self.troubles = SimpleNamespace(found=Found())
        driver = SimpleNamespace(
            node=self.lone.node, bus=SimpleNamespace(state="connected"), outbox=None, ledger=self.ledger, breakers=()
        )
        notifier = SimpleNamespace(watchdog_s=None, notify=self.said.append)
        parts: tuple[Any, ...] = (driver, self.ledger, self.troubles, notifier)
        self.health = Health(*parts, control_path="", startable=None, check_room=lambda: "", clean=lambda: None)  # type: ignore[arg-type]  # only what makes the line is there

    def status(self) -> str:
        self.health.say()
        return self.said[-1]


def test_a_node_without_trouble_says_so_once() -> None:
    machine = Machine()
    said = machine.status()
    assert said.startswith("STATUS=ready · 1 node alive · 0 runs active · ")
    assert said.endswith(" · breakers closed")
    machine.status()
    assert len(machine.said) == 1


def test_a_wall_clock_that_is_off_is_in_the_line_and_goes_again() -> None:
    machine = Machine()
    ctx, now = machine.lone.node.ctx, Now(machine.lone.now.mono, machine.lone.now.wall)
    ctx.clock_is_off(now._replace(wall=now.wall + SKEW_MAX_S + 5.0))
    assert "wall clock off: no scheduled run is opened" in machine.status()
    ctx.clock_is_off(now)
    assert "wall clock" not in machine.status()


def test_runs_that_need_a_person_are_in_the_line() -> None:
    machine = Machine()
    machine.troubles.found = Found(
        unknown=(Trouble("sales#1", "sales", ""), Trouble("sales#2", "sales", "")),
        stuck=(Trouble("stock@x", "stock", ""),),
        late=(Trouble("bills@x", "bills", ""),),
        late_jobs={"taxes": "no success for 3 h"},
        cut=True,
    )
    said = machine.status()
    assert "2 runs unknown (sales) · 1 run stuck (stock) · 1 run late (bills) · no success in time: taxes" in said
    assert NOT_ALL in said


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (RECOVERING, "ledger recovering: nothing new starts for 20 s"),
        (FOREIGN, "another ledger than this node has used: nothing new starts"),
        ("disconnected", "ledger disconnected: nothing new starts"),
    ],
)
def test_a_ledger_that_grants_nothing_is_in_the_line(state: str, said: str) -> None:
    machine = Machine()
    machine.ledger.state, machine.ledger.recovering_s = state, 12.0
    assert said in machine.status()
