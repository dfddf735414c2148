"""A node's alarms in one small file, replaced as a whole."""

from __future__ import annotations

import json
import os
from typing import Any

from coordd.adapters.disk.files import write_atomic
from coordd.errors import UnavailableError

# Our file is always smaller.
BYTES_MAX = 4 * 2**20


class AlarmFile:
    """The file of core.node.alarms."""

    def __init__(self, path: str) -> None:
        self.path = path

    def load(self) -> tuple[dict[str, Any], str]:
        """The stored alarms, and a sentence for the log if the file could not be read; it is then moved aside, if
        possible.
        """
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
        return {}, f"{self.path} cannot be read: {reason}; {aside}: earlier alarms are forgotten"

    def save(self, kept: dict[str, Any]) -> None:
        """Write it; it is on the disk when this returns.

        Raises:
            UnavailableError: the disk refuses it. The old file is still there.
        """
        try:
            write_atomic(self.path, json.dumps(kept).encode() + b"\n")
        except OSError as exc:
            raise UnavailableError(f"cannot write {self.path}: {exc.strerror or exc}") from exc
