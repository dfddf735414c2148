"""Installs a strategy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from plugins.written import written

from coordd.plugins import STRATEGIES
from coordd.services.strategies import brought

IMPORTS = "import json, math, os, re, sys, time"

Bring = Callable[[str], None]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may be busy; a test of one that hangs has its own limit."""
    monkeypatch.setattr(brought, "ASKED_S", 30.0)


@pytest.fixture
def bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bring:
    """Install a strategy under the name "mine", and perhaps a second one, "yours"."""

    def bring(text: str) -> None:
        folder = written(tmp_path / "site", STRATEGIES, f"{IMPORTS}\n{text}\n", "mine", "yours")
        monkeypatch.setenv("PYTHONPATH", str(folder))

    return bring
