"""Follows a program that runs: its output into the log, its application id to whoever asks."""

import os

from coordd.runner.log import READ_BYTES, Log
from coordd.runner.loop import Loop, is_readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Output:
    """``identified`` is called once, with the application id."""

    def __init__(self, spec: "dict[str, Any]", fd: int, loop: Loop, identified: "Callable[[str], None]") -> None:
        self.fd = fd
        self.loop = loop
        self.log = Log(spec["log_path"], spec["log_bytes_max"])
        self.application_id = ""
        self._patterns: tuple[str, ...] = tuple(spec.get("never_on_patterns", ()))
        self._identified_by = identified
        self._printed: Any = None
        loop.on(fd, self._read)
        if spec.get("launcher_port"):
            from coordd.runner.channel import Channel, Printed  # only Spark's drivers have an application id

            self._printed = Printed()
            self._channel = Channel(spec["launcher_fd"], spec["launcher_secret"])
            loop.on(spec["launcher_fd"], self._driver_connects)

    def finish(self) -> None:
        """Nobody writes any more: take what is left."""
        while self.loop.has(self.fd) and is_readable(self.fd):
            self._read(self.fd)

    def is_final(self) -> bool:
        """The job says that a failure which ends its output like this one is not to be tried again."""
        if not self._patterns:
            return False
        import re

        text = "\n".join(self.log.lines())
        try:
            return any(re.search(pattern, text) for pattern in self._patterns)
        except re.error as exc:
            os.write(2, f"never_on: {exc}\n".encode())  # into runner.log: a bad pattern must not lose the run
            return False

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self.loop.off(fd)
            return
        self.log.write(data)
        if self._printed is not None and not self.application_id:
            self._identified(self._printed.search(data))

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
