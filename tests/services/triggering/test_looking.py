"""One look of the node that polls: what a source raises is the trigger's problem, and nobody else's."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from coordd.errors import UnavailableError
from coordd.services.triggering.service import Watched
from coordd.services.triggering.sources import Look, Source

from .test_taking import DROP, Machine


class Strange(Source):
    """It raises this, as long as there is something to raise."""

    def __init__(self, raises: Exception) -> None:
        self.raises: Exception | None = raises

    async def look(self, _room: Any) -> Look:
        if self.raises is not None:
            raise self.raises
        return Look([], [])


@pytest.mark.parametrize(
    ("raises", "problem"),
    [
        (UnavailableError("it is away"), "it is away"),
        (TypeError("_dead() takes 3"), "the look failed: TypeError"),
        (ExceptionGroup("two", [ValueError("1"), KeyError("2")]), "the look failed: ExceptionGroup"),
    ],
)
def test_whatever_a_source_raises_is_a_problem_until_the_next_look(raises: Exception, problem: str) -> None:
    machine: Any = Machine()
    polling: Any = None
    source = Strange(raises)
    watched = Watched("j", DROP, machine, machine, polling, source)
    assert trio.run(watched._look) == DROP.every_s
    assert (watched.problem, watched.summary()["problem"]) == (problem, problem)
    assert watched.failed_at > 0.0
    source.raises = None
    trio.run(watched._look)
    assert (watched.problem, watched.failed_at) == ("", float("-inf"))
