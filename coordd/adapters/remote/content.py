"""The content of a copy: the bytes of some local files, one after the other, as many as they had in the beginning."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Self

from coordd.errors import RefusedError, UnavailableError

CHUNK_BYTES = 256 * 1024


class Deadline:
    """The end of one copy, however many steps it has. ``what`` is named when it is over."""

    def __init__(self, timeout_s: float, what: str) -> None:
        self._at = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._what = what

    def left_s(self) -> float:
        """Seconds that are left. Raises UnavailableError if there are none."""
        left = self._at - time.monotonic()
        if left <= 0.0:
            raise UnavailableError(f"{self._what} was not done within {self._timeout_s:g} s")
        return left


class Content:
    """The files, opened: a rotation or a removal does not change what is read. Used as a context."""

    def __init__(self, paths: Sequence[str]) -> None:
        """Raises RefusedError if the last of them, or all, are gone; UnavailableError if one cannot be read."""
        self._files: list[tuple[BinaryIO, int]] = []
        self._held = contextlib.ExitStack()
        try:
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    file = self._held.enter_context(open(path, "rb"))  # noqa: SIM115 - the stack closes it
                    self._files.append((file, os.fstat(file.fileno()).st_size))
        except OSError as exc:
            self._held.close()
            raise UnavailableError(f"cannot read {path}: {exc.strerror or exc}") from exc
        if not self._files:
            raise RefusedError(f"{paths[-1]} is gone", kind="gone")

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return sum(size for _, size in self._files)

    def chunks(self, deadline: Deadline) -> Iterator[bytes]:
        """The bytes from the beginning. Raises UnavailableError: late, or a file became shorter or unreadable."""
        for file, size in self._files:
            left = size
            try:
                file.seek(0)
                while left:
                    deadline.left_s()
                    data = file.read(min(left, CHUNK_BYTES))
                    if not data:
                        raise UnavailableError(f"{file.name} became shorter while it was read")
                    left -= len(data)
                    yield data
            except OSError as exc:
                raise UnavailableError(f"cannot read {file.name}: {exc.strerror or exc}") from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
