"""Follows a running program: writes its output to the log, and finds its application id."""

import os

from coordd.runner.kernel import complain
from coordd.runner.log import READ_BYTES, Log
from coordd.runner.loop import Loop, is_readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


# Output that cannot be read at the end, after this many tries, is lost; the run is not.
READ_FAILURES_MAX = 10


class Output:
    """``identified`` is called once, with the application id."""

    def __init__(self, spec: "dict[str, Any]", fd: int, loop: Loop, identified: "Callable[[str], None]") -> None:
        self.fd = fd
        self.loop = loop
        self.log = Log(spec["log_path"], spec["log_bytes_max"])
        self.application_id = ""
        self._patterns: dict[str, tuple[str, ...]] = {
            key: tuple(spec.get(f"{key}_patterns", ())) for key in ("never_on", "breaker")
        }
        self._identified_by = identified
        self._printed: Any = None
        loop.on(fd, self._read)
        if spec.get("launcher_port"):
            from coordd.runner.channel import Channel, Printed  # only Spark's drivers have an application id

            self._printed = Printed()
            user = spec["unit"]["user"] if spec.get("unit") else ""
            self._channel = Channel(spec["launcher_fd"], spec["launcher_secret"], user)
            loop.on(spec["launcher_fd"], self._driver_connects)

    def finish(self) -> None:
        """Nobody writes any more: read the rest."""
        failures = 0
        while failures < READ_FAILURES_MAX and self.loop.has(self.fd) and is_readable(self.fd):
            failures = 0 if self._take() else failures + 1

    def verdict(self) -> "tuple[bool, bool, str]":
        """Whether the job says that a failure with such output must not be retried, whether its breaker counts it, and
        the line that explains it.
        """
        return self._matches("never_on"), self._matches("breaker"), self.telling_line()

    def _matches(self, key: str) -> bool:
        """True if one of the job's patterns under that key matches."""
        if not self._patterns[key]:
            return False
        try:
            from coordd.runner.patterns import found

            return found(self._patterns[key], "\n".join(self.log.lines()), key)
        except Exception as exc:  # no descriptor or process left, or the package was replaced: a failure stays one
            complain(f"{key}: {exc}")
            return False

    def telling_line(self) -> str:
        """The line of the output that explains the failure; "" if there is none."""
        try:
            from coordd.core.redaction import telling_line

            return telling_line(self.log.tail_lines())
        except Exception as exc:  # no descriptor left, or the package was replaced since: a failure stays a failure
            complain(f"cannot say why it failed: {exc}")
            return ""

    def _read(self, _fd: int) -> None:
        self._take()

    def _take(self) -> bool:
        """Read a piece; False if there was none."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except OSError:
            return False  # nothing yet, or it cannot be read now
        if not data:
            self.loop.off(self.fd)
            return True
        self.log.write(data)
        if self._printed is not None and not self.application_id:
            self._identified(self._printed.search(data))
        return True

    def _driver_connects(self, _fd: int) -> None:
        fd = self._channel.accept()
        if fd is not None:
            self.loop.on(fd, self._driver_says)

    def _driver_says(self, fd: int) -> None:
        self.loop.off(fd)  # first: reading may close it
        is_open, application_id = self._channel.read(fd)
        if is_open:
            self.loop.on(fd, self._driver_says)
        self._identified(application_id)

    def _identified(self, application_id: str) -> None:
        if application_id and not self.application_id:
            self.application_id = application_id
            self._identified_by(application_id)
