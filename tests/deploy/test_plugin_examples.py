"""What two examples of plug-ins say: the trigger for mail, and the strategy of the night."""

from __future__ import annotations

import runpy
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordd.core.node.room import Room

ROOT = Path(__file__).parents[2]


def test_a_subject_is_decoded_and_on_one_line(tmp_path: Path) -> None:
    for name in ("cur", "new", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "new" / "1.a").write_bytes(
        b"From: =?utf-8?q?J=C3=B6rg?= <j@example>\r\n"
        b"Subject: =?utf-8?q?Umsatz_f=C3=BCr?=\r\n the whole\r\n month\r\n\r\nx"
    )
    (tmp_path / "new" / "2.b").write_bytes(b"\r\nnothing")
    look = runpy.run_path(str(ROOT / "deploy/plugins/trigger/maildir.py"))["look"]

    assert [fields for _, fields in look(SimpleNamespace(path=str(tmp_path)))] == [
        {"sender": "Jörg <j@example>", "subject": "Umsatz für the whole month"},
        {"sender": "None", "subject": "None"},
    ]


@pytest.mark.parametrize(("hour", "load", "expected"), [(3, 0.2, 8), (3, 1.5, 1), (12, 0.2, 1)])
def test_there_is_more_room_by_night(hour: int, load: float, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    night = runpy.run_path(str(ROOT / "deploy/plugins/strategy/night.py"))["night"]
    monkeypatch.setattr(time, "localtime", lambda: SimpleNamespace(tm_hour=hour))

    assert night(Room(1, 8, 1, 0, wanted=True, load=load, memory=0.5, at=0.0)) == expected
