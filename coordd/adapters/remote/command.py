"""A store that only a site's command knows: S3, HDFS with Kerberos, any other.

The command gets the path of a whole file, never a pipe. If this process dies, a pipe would end early, and the command
would take a part for the whole.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence

from coordd.adapters.remote.content import CHUNK_BYTES, Content, Deadline
from coordd.core.redaction import redact_text
from coordd.errors import RefusedError, UnavailableError

# The part of a command's complaint that is read (bytes), and the part that is told (characters).
COMPLAINT_BYTES = 4096
COMPLAINT_LENGTH = 300


class CommandStore:
    """ports.RemoteStore. In both commands `{target}` is the address; in ``put`` `{source}` is the file."""

    def __init__(self, url: str, put: Sequence[str], get: Sequence[str], spool: str) -> None:
        """``get`` writes the object to its standard output; without it nothing is read. ``spool``: a directory."""
        self.url = url
        self._put_argv = put
        self._get_argv = get
        self._spool = spool

    def put(self, name: str, paths: Sequence[str], timeout_s: float) -> int:
        """Copy the content to a file of its own, and call the command with it. Exit code 0 is a success."""
        with Content(paths) as content:
            self._store(name, content, timeout_s)
            return content.size

    def _store(self, name: str, content: Content, timeout_s: float) -> None:
        deadline = Deadline(timeout_s, f"{self._put_argv[0]} for {name}")
        try:
            os.makedirs(self._spool, mode=0o700, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._spool, suffix=".part") as file:
                for data in content.chunks(deadline):
                    file.write(data)
                file.flush()
                self._run(self._put_argv, {"{source}": file.name, "{target}": self._target(name)}, deadline, None)
        except OSError as exc:
            raise UnavailableError(f"{self._put_argv[0]}: {exc.strerror or exc}") from exc

    def end(self, name: str, limit: int, timeout_s: float) -> bytes:
        """The last bytes of what the command writes; the rest is dropped as it comes."""
        if not self._get_argv:
            raise RefusedError(f"{self.url} cannot be read: [history] sink_get is not set", kind="no_copy")
        deadline = Deadline(timeout_s, f"{self._get_argv[0]} for {name}")
        kept = bytearray()
        try:
            self._run(self._get_argv, {"{target}": self._target(name)}, deadline, (kept, limit))
        except OSError as exc:
            raise UnavailableError(f"{self._get_argv[0]}: {exc.strerror or exc}") from exc
        return bytes(kept[-limit:])

    def _target(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}"

    def _run(
        self, template: Sequence[str], values: dict[str, str], deadline: Deadline, into: tuple[bytearray, int] | None
    ) -> None:
        argv = [_filled(word, values) for word in template]
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=said if into is None else subprocess.PIPE,
                stderr=said,
                start_new_session=True,
            )
            try:
                if into is not None:
                    self._read(process, deadline, *into)
                code = process.wait(deadline.left_s())
            except subprocess.TimeoutExpired:
                deadline.left_s()
                raise UnavailableError(f"{argv[0]} did not end in time") from None
            finally:
                if process.stdout is not None:
                    process.stdout.close()
                with contextlib.suppress(ProcessLookupError):  # what it has left behind goes too
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if code:
                raise UnavailableError(f"{argv[0]} ended with {code}: {_complaint(said.fileno())}")

    @staticmethod
    def _read(process: subprocess.Popen[bytes], deadline: Deadline, kept: bytearray, limit: int) -> None:
        import selectors

        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while selector.select(deadline.left_s()):
                data = os.read(process.stdout.fileno(), CHUNK_BYTES)
                if not data:
                    return
                kept += data
                del kept[: max(0, len(kept) - limit)]
        deadline.left_s()


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


def _complaint(fd: int) -> str:
    """The last line that a command has written, for people."""
    size = os.fstat(fd).st_size
    text = os.pread(fd, COMPLAINT_BYTES, max(0, size - COMPLAINT_BYTES)).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return redact_text(lines[-1][:COMPLAINT_LENGTH]) if lines else "it says nothing"
