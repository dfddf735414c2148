"""A short `make chaos`: faults on real processes. Their programs' output is checked; nothing may be left."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from chaos.net import ROOT, Net
from chaos.trial import Plan, run

SEED = 4
MINUTES = 0.4


@pytest.mark.parametrize("setup", ["redis", "sentinel"])
def test_faults_for_a_while_violate_nothing(setup: str, tmp_path: Path) -> None:
    outcome = run(Plan(setup, SEED, MINUTES, nodes=3, faults=12.0), lambda _: None, tmp_path / "evidence")

    assert outcome.verdict.violations == []
    assert outcome.verdict.counts["launches"] > 0
    assert outcome.nemesis.log, "nothing has struck"
    lab = Net([]).lab  # the lab of this process
    assert not (ROOT / lab).exists()
    assert lab not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
