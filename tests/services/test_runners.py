"""What becomes of a grant whose runner cannot be started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordd.core.ready import Launch
from coordd.errors import RefusedError, UnavailableError
from coordd.services.runners import Runners

LAUNCH = Launch("sales#1", "sales", 0, 7, "nonce", 0.0, "{}", 100.0, 60.0)


@pytest.mark.parametrize(
    ("failure", "told"),
    [(RefusedError("the arguments do not fit"), "launch_refused"), (UnavailableError("no Java"), "launch_failed")],
)
def test_a_run_that_fits_nowhere_is_told_from_a_node_that_lacks_something(failure: Exception, told: str) -> None:
    said: list[tuple[Any, ...]] = []

    def node_hears(word: str) -> Any:
        return lambda launch, reason, _now: said.append((word, launch.run, reason))

    def build(_launch: Launch) -> dict[str, Any]:
        raise failure

    words = ("launch_refused", "launch_failed")
    node = SimpleNamespace(ctx=SimpleNamespace(jobs={}), **{word: node_hears(word) for word in words})
    runners = Runners(SimpleNamespace(start=pytest.fail), build, "")  # type: ignore[arg-type]
    runners.driver = SimpleNamespace(node=node, now=lambda: 0.0)  # type: ignore[assignment]

    runners.launch(LAUNCH)

    assert said == [(told, "sales#1", str(failure))]
    assert runners.runners == {}
