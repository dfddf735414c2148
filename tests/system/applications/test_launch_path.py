"""The submitter is killed once at each line of the launch path. `make applications` does it twenty times."""

from __future__ import annotations

import pytest

from system.applications.launch_path import POINTS, play
from system.applications.tracked import FAKES


@pytest.mark.paired
@pytest.mark.parametrize("kind", FAKES)
def test_one_application_wherever_the_submitter_is_killed(kind: str) -> None:
    assert play(kind, 1, seed=7) == dict.fromkeys(POINTS, 1)
