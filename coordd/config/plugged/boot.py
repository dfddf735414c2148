"""Reads ``[[boot]]``: boot steps of packages, which the daemon takes when it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec

from coordd.config import values
from coordd.config.plugged.services import read_memory, read_seconds, read_tables
from coordd.core.jobs.arguments import nearest
from coordd.plugins import BOOT_STEPS

STEPS_MAX = 20
ARGS_MAX = 50


class BootStep(msgspec.Struct, frozen=True, kw_only=True):
    """One boot step. ``step``: its entry point, unless that is its name.

    ``mandatory``: the daemon is not ready before it is done. ``requires``: the names of steps that must be done before
    it. ``timeout_s``: of one try, in seconds. ``memory``: bytes of its data.
    """

    name: str
    step: str = ""
    mandatory: bool = True
    requires: tuple[str, ...] = ()
    args: dict[str, str] = {}
    timeout_s: float = 30.0
    memory: int = 512 * 2**20

    @property
    def point(self) -> str:
        """The name of its entry point."""
        return self.step or self.name


def read_boot(tables: Any, report: Callable[[str], None]) -> tuple[BootStep, ...]:
    """The boot steps, each after those that it requires; each problem is reported in a sentence."""
    steps: dict[str, BootStep] = {}
    sound = True

    def tell(message: str) -> None:
        nonlocal sound
        sound = False
        report(message)

    for said, wrong in read_tables("boot", tables, STEPS_MAX, _READERS, steps, tell, what="boot step"):
        if not wrong:
            step = BootStep(**{"timeout_s" if key == "timeout" else key: value for key, value in said.items()})
            try:
                values.brought(step.point, BOOT_STEPS, "a boot step")
                steps[step.name] = step
            except ValueError as exc:
                wrong.append(f"{'step' if step.step else 'name'}: {exc}")
    if sound:
        for message in _between(steps):
            tell(message)
    return tuple([steps[name] for name in _order(steps)]) if sound else ()


def _between(steps: Mapping[str, BootStep]) -> list[str]:
    """Contradictions between the steps, as sentences."""
    found = []
    for step in steps.values():
        for other in step.requires:
            before = steps.get(other)
            if before is None:
                found.append(f'boot step "{step.name}": requires: there is no "{other}"; {nearest(other, steps)}')
            elif step.mandatory and not before.mandatory:
                found.append(
                    f'boot step "{step.name}": requires: it is mandatory and "{other}" is not, so the start could wait'
                    " for ever: make both mandatory, or none"
                )
    if not found:
        try:
            _order(steps)
        except CycleError as exc:
            found.append(f"boot steps require each other in a circle: {' → '.join(reversed(exc.args[1]))}")
    return found


def _order(steps: Mapping[str, BootStep]) -> list[str]:
    """Raises CycleError."""
    return list(TopologicalSorter({name: step.requires for name, step in steps.items()}).static_order())


def _args(value: object) -> dict[str, str]:
    said = values.text_table(value)
    if len(said) > ARGS_MAX:
        raise ValueError(f"expected at most {ARGS_MAX} values, found {len(said)}")
    return said


_READERS: dict[str, values.Reader] = {
    "name": values.name,
    "step": values.text,
    "mandatory": values.flag,
    "requires": values.tags,
    "args": _args,
    "timeout": read_seconds,
    "memory": read_memory,
}
