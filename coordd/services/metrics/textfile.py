"""The file with metrics for node-exporter's textfile collector, replaced as a whole."""

from __future__ import annotations

import contextlib
import os

import structlog

log = structlog.get_logger("metrics")


class TextFile:
    """Writes one file. A directory that cannot be written is named once, and tried again with each text."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.problem = ""  # why the last text is not there

    def write(self, text: bytes) -> None:
        """Replace the file: a reader sees the old text or the new one. Never raises because of the disk.

        Not synced: after a power cut, the next text is written by the next daemon.
        """
        # The collector reads *.prom only.
        aside = f"{self._path}.{os.getpid()}.new"
        problem = ""
        try:
            with open(aside, "wb") as file:
                file.write(text)
                os.fchmod(file.fileno(), 0o644)  # node-exporter is another user
            os.rename(aside, self._path)
        except OSError as exc:
            problem = f"{self._path} cannot be written: {exc.strerror or exc}"
            with contextlib.suppress(OSError):
                os.unlink(aside)
        if problem and problem != self.problem:
            log.error("metrics.not_written", reason=problem, effect="it is tried again")
        elif self.problem and not problem:
            log.info("metrics.written_again", path=self._path)
        self.problem = problem

    def remove(self) -> None:
        """The daemon stops: a file that stays would look alive."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
