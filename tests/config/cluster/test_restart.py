"""Settings that a reload does not take: they stay as they were at the start, and each reload says so."""

from __future__ import annotations

from pathlib import Path

from config.written import write
from coordd.config.for_core import needs_restart, restarted_with, settings_of
from coordd.config.settings import load

START = """
[node]
name = "n1"
[cluster]
name = "default"
ledger_timeout = 2.0
lease = 60.0
"""


def test_what_needs_a_restart_stays_as_at_the_start_and_the_rest_is_taken(tmp_path: Path) -> None:
    start = load(write(tmp_path / "a.toml", START), {})
    edited = START.replace("default", "test").replace("2.0", "3.0").replace("60.0", "90.0")
    asked = load(write(tmp_path / "b.toml", edited + '[control]\nsocket = "/run/other.sock"\n'), {})

    taken = restarted_with(start, asked)

    assert (taken.cluster.name, taken.cluster.ledger_timeout, taken.control) == ("default", 2.0, start.control)
    assert settings_of(taken, "1").lease_s == 90.0
    assert needs_restart(start, taken) == []
    assert sorted(needs_restart(start, asked)) == ["[cluster] ledger_timeout", "[cluster] name", "[control] socket"]
