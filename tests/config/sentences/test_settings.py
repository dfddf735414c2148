"""The sentences about coordd.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordd.config import safety
from coordd.config.settings import load


@pytest.mark.parametrize("key", ["keep", "logs_keep", "journal_keep"])
def test_a_history_of_less_than_a_day_is_warned_of(tmp_path: Path, key: str) -> None:
    """A number means seconds: who writes 90 means days."""

    def warned(value: str) -> list[tuple[str, str]]:
        path = tmp_path / "coordd.toml"
        path.write_text(f"[history]\n{key} = {value}\n")
        return [(problem.key, problem.message) for problem in safety.warnings(load(str(path), {}))]

    [(where, message)] = warned("90")
    assert where == f"history.{key}"
    assert "expected at least a day, found 90 s: what is older is removed" in message
    assert 'a number means seconds: is "90d" meant?' in message
    [(where, message)] = warned('"23h"')
    assert (where, "meant" in message) == (f"history.{key}", False)
    assert warned('"1d"') == warned("86400") == []
