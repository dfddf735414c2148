"""The plug-in of a trigger for mail: what a run is told of a message."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

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
