"""Structured logs: into the systemd journal, as JSON lines, or for a person at a terminal. No line is lost.

``detect`` finds out from stderr which of the three; a site may pass its own detection. A line that cannot be rendered
or written goes to stderr as plain text; logging never raises an exception into the program.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TextIO

from coordd.adapters.journald import JournalSocket
from coordd.core.redaction import HIDDEN, is_password_name, redact_text
from coordd.core.visible import obeyed, visible, visible_json

# structlog.dev imports rich if it is installed: 45 ms and 4 MB that a daemon does not need.
_had_rich = "rich" in sys.modules
if not _had_rich:
    sys.modules["rich"] = None  # type: ignore[assignment]  # the documented way to make an import fail
try:
    import structlog
finally:
    if not _had_rich:
        del sys.modules["rich"]

JOURNAL = "journal"
JSON = "json"
CONSOLE = "console"

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
COLOURS = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "1;31"}

# A value nested deeper than this is shown by its repr.
DEPTH_MAX = 6

# Names of fields of which it is remembered whether they are secret. The program has fewer.
NAMES_MAX = 1024

_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

EventDict = dict[str, Any]
Detect = Callable[[TextIO, Mapping[str, str]], str]


def detect(stream: TextIO, environ: Mapping[str, str] = os.environ) -> str:
    """JOURNAL when JOURNAL_STREAM names the stream (device:inode), CONSOLE on a terminal, else JSON."""
    try:
        stat = os.fstat(stream.fileno())
        if environ.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}":
            return JOURNAL
        return CONSOLE if stream.isatty() else JSON
    except (OSError, ValueError):  # no file behind it, or closed
        return JSON


def configure(
    stream: TextIO | None = None, level: str = "info", *, detect: Detect = detect, journal: JournalSocket | None = None
) -> Sink:
    """Set structlog up for the whole process; may be called again; existing loggers follow.

    ``stream`` is stderr when None. Returns the sink, whose counters show whether logging works.
    """
    stream = stream or sys.stderr
    assert level in LEVELS, level
    sink = Sink(stream, detect(stream, os.environ), journal or JournalSocket())
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, _add_trace, _format_exception, redact],
        wrapper_class=_bound_logger(LEVELS[level]),
        logger_factory=lambda *_: sink,
        cache_logger_on_first_use=False,
    )
    return sink


class Sink:
    """The sink of events. ``lines`` and ``fallbacks`` count; ``lost`` counts lines that even stderr refused."""

    def __init__(self, stream: TextIO, runtime: str, journal: JournalSocket) -> None:
        self.stream = stream
        self.runtime = runtime
        self.lines = self.fallbacks = self.lost = 0
        self._journal = journal
        self._coloured = runtime == CONSOLE and "NO_COLOR" not in os.environ
        self._lock = threading.Lock()

    def emit(self, level: str, event: EventDict) -> None:
        """Render and write one event; may raise anything: the bound logger then falls back."""
        if self.runtime == JOURNAL:
            fields = _journal_fields(level, event)
            with self._lock:
                self._journal.send(fields)
        elif self.runtime == CONSOLE:
            self._write(_console_line(level, event, coloured=self._coloured))
        else:
            self._write(_json_line(level, event))
        self.lines += 1

    def fall_back(self, level: str, event: Any, fields: EventDict, exc: BaseException) -> None:
        """Plain text with repr, on stderr; further errors are only counted."""
        self.fallbacks += 1
        try:
            # systemd reads <N> at the start of a line of stderr as its priority.
            prefix = f"<{PRIORITIES.get(level, 6)}>" if self.runtime == JOURNAL else ""
            text = f"{_repr(event)} {_repr(fields)} (not logged as usual: {type(exc).__name__}: {_str(exc)})"
            self._write(f"{prefix}{level} {redact_text(text)}\n")
        except Exception:
            self.lost += 1  # stderr itself is gone: nobody is left to tell

    def _write(self, text: str) -> None:
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        with self._lock:
            # A lone surrogate (a file name that is not UTF-8) must not lose the line.
            self.stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self.stream.flush()


def _bound_logger(minimum: int) -> type[structlog.BoundLoggerBase]:
    class Logger(structlog.BoundLoggerBase):
        """The loggers of this process: five levels, ``exception``, ``log(level, …)``; none of them ever raises."""

        def debug(self, event: Any = "", **fields: Any) -> None:
            self._log("debug", event, fields)

        def info(self, event: Any = "", **fields: Any) -> None:
            self._log("info", event, fields)

        def warning(self, event: Any = "", **fields: Any) -> None:
            self._log("warning", event, fields)

        def error(self, event: Any = "", **fields: Any) -> None:
            self._log("error", event, fields)

        def critical(self, event: Any = "", **fields: Any) -> None:
            self._log("critical", event, fields)

        def exception(self, event: Any = "", **fields: Any) -> None:
            self._log("error", event, {"exc_info": True, **fields})

        def log(self, level: str, event: Any = "", **fields: Any) -> None:
            self._log(level, event, fields)

        def _log(self, level: str, event: Any, fields: EventDict) -> None:
            if LEVELS.get(level, minimum) < minimum:
                return
            try:
                made = {**self._context, **fields, "event": event}
                for process in self._processors:
                    made = process(self._logger, level, made)  # type: ignore[assignment]  # a processor may return text
                self._logger.emit(level, made)
            except structlog.DropEvent:
                return
            except Exception as exc:
                self._logger.fall_back(level, event, {**self._context, **fields}, exc)

    return Logger


# ---- processors

_trace_of: list[Callable[[str], str]] = []


def traced(trace_of: Callable[[str], str]) -> None:
    """From now on each line about a run has ``trace_id``. ``trace_of``: the trace of a run's id."""
    _trace_of[:] = [trace_of]


def _add_trace(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    run = event.get("run")
    if _trace_of and isinstance(run, str) and run:
        event["trace_id"] = _trace_of[0](run)
    return event


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> EventDict:
    """Remove the passwords from URLs, and make every value plain: text, number, list, dictionary."""
    made = {}
    for key, value in event.items():
        name, has_password = _of_name(str(key))
        made[name] = _plain(value, DEPTH_MAX, has_password=has_password)
    return made


@lru_cache(NAMES_MAX)
def _of_name(name: str) -> tuple[str, bool]:
    """The name as it is shown, and whether its value is surely a password."""
    return redact_text(name), is_password_name(name)


def _plain(value: Any, depth: int, *, has_password: bool = False) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if has_password:
        return HIDDEN
    if isinstance(value, float):
        return value if value - value == 0 else repr(value)  # JSON has no NaN and no infinity
    if isinstance(value, str):
        return redact_text(value)
    if depth and isinstance(value, dict):
        return {
            redact_text(str(k)): _plain(v, depth - 1, has_password=isinstance(k, str) and is_password_name(k))
            for k, v in value.items()
        }
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [_plain(v, depth - 1) for v in value]
    if isinstance(value, BaseException):
        return redact_text(f"{type(value).__name__}: {_str(value)}")
    return redact_text(_repr(value))


def _format_exception(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """``exc_info`` (True, or an exception) becomes ``exception``, the traceback as text."""
    found = event.pop("exc_info", None)
    exc = sys.exc_info()[1] if found is True else found
    if isinstance(exc, BaseException):
        import traceback  # imported only if there is one

        event["exception"] = "".join(traceback.format_exception(exc)).rstrip()
    return event


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as exc:
        return f"<{type(value).__name__} whose repr raised {type(exc).__name__}>"


def _str(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:
        return _repr(exc)


# ---- renderers: a plain event to text or fields


def _json_line(level: str, event: EventDict) -> str:
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = {"timestamp": stamp, "level": level, "event": event.get("event", "")}
    for key, value in event.items():
        if key != "event":
            line[f"{key}_" if key in line else key] = value
    return visible_json(_encoded(line)) + "\n"


def _message(event: EventDict) -> str:
    """One line for people: the event, then key=value; a traceback follows on its own lines."""
    fields = dict(event)
    text = visible(str(fields.pop("event", "")))
    exception = fields.pop("exception", "")
    words = [text, *(f"{key}={_shown(value)}" for key, value in fields.items())]
    return " ".join(words) + (f"\n{visible(str(exception), lines=True)}" if exception else "")


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return visible_json(json.dumps(value, ensure_ascii=False))
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if obeyed(text):
        return visible_json(json.dumps(text, ensure_ascii=False))
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set(' "=') else text


def _console_line(level: str, event: EventDict, *, coloured: bool) -> str:
    now = time.time()
    clock = time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03d}"
    shown = f"\x1b[{COLOURS.get(level, '0')}m{level:<8}\x1b[0m" if coloured else f"{level:<8}"
    return f"{clock} {shown} {_message(event)}\n"


def _journal_fields(level: str, event: EventDict) -> dict[str, str]:
    fields = {
        "MESSAGE": _message(event),
        "PRIORITY": str(PRIORITIES.get(level, 6)),
        "SYSLOG_IDENTIFIER": "coordd",
        "COORDD_EVENT": str(event.get("event", "")),
    }
    for key, value in event.items():
        if key != "event":
            fields[f"COORDD_{key}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return fields
