"""The type of a mutant, and how to make one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

Patch = Callable[[], contextlib.AbstractContextManager[object]]


@dataclass(frozen=True)
class Mutant:
    """One broken mechanism."""

    name: str
    rule: str
    caught_as: str  # the property that breaks; several words: one of them, whichever a world shows first
    patch: Patch
    faults: tuple[str, ...] | None = None
    forgets: bool = False  # only worlds whose ledger loses acknowledged writes
    # Of a rule that hardly any world needs: a world that does, with all its faults or only the named ones, as it is and
    # without one part of its plan each. When a change of the product moves what happens in it, one of its neighbours
    # still needs the rule.
    near: int | None = None


def instead(owner: object, name: str) -> Callable[[Callable[..., Any]], Patch]:
    """Make a patch of a function: the function replaces that method, and gets the method as its first argument."""
    real = getattr(owner, name)

    def patch(function: Callable[..., Any]) -> Patch:
        return lambda: mock.patch.object(owner, name, lambda *args, **named: function(real, *args, **named))

    return patch
