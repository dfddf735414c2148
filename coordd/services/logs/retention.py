"""Retention: what is forgotten because it is old, or because there is too much of it.

By size the oldest goes first, and nothing of the last day: what people look for first, and what a daemon reads at its
start, stays.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import structlog

from coordd.config.sections import HistoryConfig
from coordd.errors import CoorddError
from coordd.ports import Ledger

log = structlog.get_logger("retention")

# How many runs one request to the ledger forgets: no other request waits for longer than one of these.
PRUNE_AT_ONCE = 1000

# By size, nothing younger than this (seconds) is removed.
STAYS_S = 86400.0

# By size, what was written within this time (seconds) goes together: only sums are held, however many files there are.
TOGETHER_S = 600.0

# The unit of st_blocks, on every file system.
BLOCK_BYTES = 512


class Journal(Protocol):
    """The journal, as far as it is removed."""

    directory: str

    def prune(self, keep_s: float, now: float) -> list[str]:
        """Remove closed segments last written more than ``keep_s`` before ``now``; not the newest of them."""


class Retention:
    """Forgets by the present settings."""

    def __init__(
        self,
        settings: Callable[[], HistoryConfig],
        journal: Journal,
        log_dir: str,
        open_ledger: Callable[[], Ledger],
        clock: Callable[[], float],
    ) -> None:
        """``clock``: Unix seconds."""
        self._settings = settings
        self._journal = journal
        self._log_dir = log_dir
        self._open_ledger = open_ledger
        self._clock = clock

    def clean(self) -> None:
        """Remove what is over, of the journal, the logs and the ledger's runs; runs in a thread."""
        history, now = self._settings(), self._clock()
        try:
            directory = self._journal.directory
            self._journal.prune(_kept_s(_files(directory), history.journal_keep_s, history.journal_bytes, now), now)
            keep_s = _kept_s(_files(self._log_dir), history.logs_keep_s, history.logs_bytes, now)
            for path, written_at, _ in _files(self._log_dir):  # once more: nobody holds the names of a million logs
                if written_at < now - keep_s:
                    with contextlib.suppress(FileNotFoundError):  # removed by somebody else meanwhile
                        os.unlink(path)
            ledger = self._open_ledger()
            try:
                self._forget(ledger, history)
            finally:
                ledger.close()
        except (CoorddError, OSError) as exc:
            log.warning("clean.failed", reason=str(exc))

    def _forget(self, ledger: Ledger, history: HistoryConfig) -> None:
        keep_s = history.keep_s
        if history.keep_runs:
            age_s = ledger.ended_ago(history.keep_runs)
            if age_s is not None and age_s < keep_s:
                keep_s = max(age_s, STAYS_S)
                log.info("runs.too_many", kept=history.keep_runs, older_than_s=round(keep_s))
        while ledger.prune(keep_s, PRUNE_AT_ONCE) >= PRUNE_AT_ONCE:
            pass

    def oldest(self) -> float:
        """Records of the journal from before that instant (Unix seconds) may have been removed."""
        history, now = self._settings(), self._clock()
        size = sum(size for _, _, size in _files(self._journal.directory))
        full = 0 < history.journal_bytes <= 2 * size
        return now - (min(history.journal_keep_s, STAYS_S) if full else history.journal_keep_s)


def _files(directory: str) -> Iterator[tuple[str, float, int]]:
    """(path, last written in Unix seconds, bytes) of each file below; others may remove some meanwhile.

    The bytes are those that it takes of the disk, where these are more than it holds: many small logs fill one too.
    """
    for parent, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(parent, name)
            try:
                stat = os.stat(path, follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield path, stat.st_mtime, max(stat.st_size, stat.st_blocks * BLOCK_BYTES)


def _kept_s(files: Iterable[tuple[str, float, int]], keep_s: float, bytes_max: int, now: float) -> float:
    """How long files may be kept so that they have at most ``bytes_max`` (0: any) together."""
    if not bytes_max:
        return keep_s
    sizes: Counter[int] = Counter()  # of what was written within TOGETHER_S, by its number since 1970
    for _, written_at, size in files:
        sizes[int(written_at // TOGETHER_S)] += size
    left = bytes_max
    for number in sorted(sizes, reverse=True):
        left -= sizes[number]
        if left < 0:
            # These, and what is older: removed is what was written before the next ones.
            return min(keep_s, max(STAYS_S, now - (number + 1) * TOGETHER_S))
    return keep_s
