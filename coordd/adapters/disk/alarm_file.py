"""A node's alarms on its disk, in one small file, replaced whole."""

from __future__ import annotations

import json
import os
from typing import Any

from coordd.adapters.disk.files import write_atomic
from coordd.errors import UnavailableError

# Larger than any such file of ours can be.
BYTES_MAX = 4 * 2**20


class AlarmFile:
    """What core.alarms keeps."""

    def __init__(self, path: str) -> None:
        self.path = path

    def load(self) -> tuple[dict[str, Any], str]:
        """What was kept, and a sentence for the log when that could not be read; it is then put aside, if possible."""
        try:
            with open(self.path, "rb") as file:
                said = json.loads(file.read(BYTES_MAX))
            if isinstance(said, dict):
                return said, ""
            reason = "expected an object"
        except FileNotFoundError:
            return {}, ""
        except (OSError, ValueError, RecursionError) as exc:
            reason = getattr(exc, "strerror", None) or str(exc)
        aside = f"{self.path}.bad"
        try:
            os.replace(self.path, aside)
        except OSError:
            aside = "not kept"
        return {}, f"{self.path} cannot be read: {reason}; {aside}: alarms that stood are forgotten"

    def save(self, kept: dict[str, Any]) -> None:
        """Write it; it is on the disk when this returns.

        Raises:
            UnavailableError: the disk does not take it. What was there before still is.
        """
        try:
            write_atomic(self.path, json.dumps(kept).encode() + b"\n")
        except OSError as exc:
            raise UnavailableError(f"cannot write {self.path}: {exc.strerror or exc}") from exc
