"""The copy of the last definitions, on the node's disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordd.adapters.backends.kept import KeptFile
from coordd.errors import UnavailableError
from coordd.ports import Kept


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    file = KeptFile(str(tmp_path / "kept.json"))
    kept = Kept("redis://h/0", {"sales": "[command]", "stock": {"a": 1}}, 7, "d7")
    assert file.load() == (None, "")

    file.save(kept)

    assert file.load() == (kept, "")
    assert (tmp_path / "kept.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text", ["", "[]", '{"source": 1}', '{"source":"a","jobs":[],"number":1,"digest":""}', "{" * 9999]
)
def test_a_damaged_copy_is_set_aside(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kept.json"
    path.write_text(text)

    kept, why = KeptFile(str(path)).load()

    assert kept is None
    assert "is not readable" in why
    assert not path.exists()


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot write"):
        KeptFile(str(tmp_path / "none" / "kept.json")).save(Kept("x", {}))
