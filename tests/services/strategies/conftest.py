"""Installs a strategy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from plugins.written import written

from coordd.plugins import STRATEGIES

Bring = Callable[[str], None]


@pytest.fixture
def bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bring:
    """Install a strategy under the name "mine"."""

    def bring(text: str) -> None:
        folder = written(tmp_path / "site", STRATEGIES, f"import json, math, os, re, sys, time\n{text}\n", "mine")
        monkeypatch.setenv("PYTHONPATH", str(folder))

    return bring
