"""Keeps a record of each attempt in the state directory: RUNTIME_DIR is empty after a restart of the machine.

STATE_DIR/attempts/TAG.ATTEMPT.TOKEN.json has what identifies the attempt, and the place where it was launched.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any

from coordd.adapters.disk.files import write_atomic
from coordd.adapters.place import here
from coordd.adapters.process import SPEC_NEEDS, ProcessLauncher, says
from coordd.core.runs.knowledge import NOTHING, is_over

SUFFIX = ".json"

# More than the longest arguments take in JSON; a longer file is not read into memory.
RECORD_BYTES_MAX = 512 * 1024

# What a record has of the spec: enough to report and to publish the end of the attempt.
KEPT = (*SPEC_NEEDS, "due", "args", "digest", "policy", "elsewhere", "place")


class RecordingLauncher(ProcessLauncher):
    """A launcher whose attempts can be found without their directories."""

    def __init__(self, runtime_dir: str, state_dir: str, warn: Callable[..., object], *, warm_for: str = "") -> None:
        """``warn``: is called with the name of an event and its fields when a record cannot be written or read."""
        super().__init__(runtime_dir, warm_for=warm_for)
        self.records_dir = f"{state_dir}/attempts"
        self._warn = warn

    def start(self, spec: dict[str, Any]) -> str:
        """As in ProcessLauncher; the record is on the disk before the runner starts."""
        directory = self.directory(spec["run"], spec["attempt"], spec["token"])
        full: dict[str, Any] = {"cgroup": self._cgroup(directory), "place": here(), **spec}
        self._keep(os.path.basename(directory), {key: full[key] for key in KEPT if key in full})
        return super().start(full)

    def forget(self, directory: str) -> None:
        """As in ProcessLauncher; the record goes too."""
        super().forget(directory)
        self.forget_record(os.path.basename(directory))

    def records(self) -> list[tuple[str, dict[str, Any], str]]:
        """All records: (name of the attempt's directory, what is kept of its spec, why it is certainly over or "")."""
        found = []
        now = here()
        try:
            names = sorted(os.listdir(self.records_dir))
        except FileNotFoundError:
            return []
        except OSError as exc:
            self._warn("records.not_readable", reason=f"{self.records_dir}: {exc.strerror or exc}")
            return []
        for name in names:
            if name.endswith(SUFFIX):
                spec = self._read(name)
                why = is_over(spec.get("place", {}), now, NOTHING, spec.get("elsewhere", "")) if spec else ""
                found.append((name.removesuffix(SUFFIX), spec, why))
        return found

    def forget_record(self, name: str) -> None:
        """The ledger knows how it ended, or nobody ever will."""
        with contextlib.suppress(OSError):  # the next daemon reports it again, and the ledger refuses that
            os.unlink(f"{self.records_dir}/{name}{SUFFIX}")

    def _keep(self, name: str, record: dict[str, Any]) -> None:
        try:
            os.makedirs(self.records_dir, mode=0o700, exist_ok=True)
            write_atomic(f"{self.records_dir}/{name}{SUFFIX}", json.dumps(record).encode())
        except OSError as exc:  # the run starts all the same: after a restart of the machine its lease must lapse
            self._warn("record.not_kept", run=record["run"], reason=f"{self.records_dir}: {exc.strerror or exc}")

    def _read(self, name: str) -> dict[str, Any]:
        """A record; {} if it is damaged."""
        try:
            with open(f"{self.records_dir}/{name}", "rb") as file:
                record = json.loads(file.read(RECORD_BYTES_MAX))
        except (OSError, ValueError, RecursionError) as exc:
            self._warn("record.not_readable", name=name, reason=str(exc))
            return {}
        return record if says(record, SPEC_NEEDS) else {}
