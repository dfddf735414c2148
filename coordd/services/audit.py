"""The audit: every change that a person made, and every privileged call that was refused.

A stranger can repeat a refused call for ever, and must not fill the disk. Of similar calls (one user, one method) the
first is recorded at once; the others are counted, with one record per window. Windows grow while the calls continue.
Reads of logs are recorded in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from coordd.core.wire.chain import Checked
from coordd.errors import CoorddError
from coordd.services.ledger import boottime
from coordd.services.views.objects import instant

# Similar calls within this time (seconds) are counted together. The window doubles while they continue, up to the
# second value: one record an hour.
WINDOW_S = 60.0
WINDOW_MAX_S = 3600.0

# Maximum number of open windows. Beyond it (a caller with many uids), all users share one window per method.
WINDOWS_MAX = 256
OTHERS = -1

# How often (seconds) expired windows are written.
LOOK_S = 5.0

TEXT_MAX = 300

# ``UNKNOWN``: a change was asked for, and nobody can tell whether it was made.
DONE, REFUSED, UNKNOWN = "done", "refused", "unknown"


class Window:
    """Similar calls since their last record."""

    def __init__(self, until: float, length_s: float) -> None:
        self.until = until
        self.length_s = length_s
        self.count = 0
        self.last: dict[str, Any] = {}


class Audit:
    """Decides when to write which record. ``write`` writes one; it does not raise."""

    def __init__(self, write: Callable[[dict[str, Any]], None], clock: Callable[[], float] = boottime) -> None:
        self._write = write
        self._clock = clock
        self._windows: dict[tuple[int, str, str], Window] = {}

    def done(self, record: dict[str, Any]) -> None:
        """A change was made."""
        self._write(_bounded({**record, "outcome": DONE}))

    def looked(self, record: dict[str, Any]) -> None:
        """Something was read that not everybody may read."""
        self._counted({**record, "outcome": DONE})

    def refused(self, record: dict[str, Any]) -> None:
        """A privileged call was refused; ``reason`` says why."""
        self._counted({**record, "outcome": REFUSED})

    def unknown(self, record: dict[str, Any]) -> None:
        """A change had no answer in time; ``reason`` says why. Each subject has windows of its own."""
        self._counted({**record, "outcome": UNKNOWN}, str(record["subject"]))

    @contextmanager
    def by_signal(self, method: str, name: str) -> Iterator[None]:
        """A change that a signal asks for: only root and the daemon's user may send one. A refusal goes no further."""
        record = {"method": method, "subject": "", "uid": os.getuid(), "by": name}
        try:
            yield
        except CoorddError as exc:
            self.refused({**record, "reason": str(exc)})
        else:
            self.done(record)

    def _counted(self, record: dict[str, Any], subject: str = "") -> None:
        now = self._clock()
        # A uid is a user of one machine: callers on another node (``from_node``) have windows of their own.
        what = " ".join(filter(None, (record["method"], record.get("from_node"), subject)))
        key = (int(record["uid"]), what, str(record["outcome"]))
        if key not in self._windows and len(self._windows) >= WINDOWS_MAX:
            key = (OTHERS, *key[1:])
        window = self._windows.get(key)
        if window is None:
            self._windows[key] = Window(now + WINDOW_S, WINDOW_S)
            self._write(_bounded(record))
            return
        window.count += 1
        window.last = record

    def look(self) -> None:
        """Write the counts of expired windows."""
        now = self._clock()
        for key, window in list(self._windows.items()):
            if now >= window.until:
                if not window.count:
                    del self._windows[key]
                    continue
                self._tell(window)
                window.length_s = min(2 * window.length_s, WINDOW_MAX_S)
                window.until = now + window.length_s

    def close(self) -> None:
        """Write all counts: the daemon stops."""
        for window in self._windows.values():
            if window.count:
                self._tell(window)
        self._windows.clear()

    def _tell(self, window: Window) -> None:
        self._write(_bounded({**window.last, "count": window.count}))
        window.count, window.last = 0, {}


def _bounded(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value[:TEXT_MAX] if isinstance(value, str) else value for key, value in record.items()}


def audit_view(checked: Checked) -> dict[str, Any]:
    """The result of a check of the audit chain, for people."""
    return {
        "records": [_record_view(record) for record in checked.records],
        "chain": {
            "intact": not checked.breaks,
            "records": checked.total,
            "first": checked.first or None,
            "breaks": [broken._asdict() for broken in checked.breaks],
        },
    }


def _record_view(record: dict[str, Any]) -> dict[str, Any]:
    at = record.get("timestamp")
    return {
        "n": record.get("n"),
        "at": instant(at) if isinstance(at, (int, float)) else None,
        "method": record.get("method"),
        "subject": record.get("subject") or None,
        "outcome": record.get("outcome", DONE),  # an older version recorded only done calls
        "by": record.get("by"),
        "uid": record.get("uid"),
        "pid": record.get("caller_pid"),
        "request": record.get("request"),
        "reason": record.get("reason"),
        "count": record.get("count", 1),
        "node": record.get("hostname"),
        "unwritten": record.get("unwritten", 0),
    }
