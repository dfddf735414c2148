"""A directory of this machine, for instance a mounted one: `file://`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from coordd.adapters.disk.files import sync_directory
from coordd.adapters.remote.content import Content, Deadline
from coordd.errors import RefusedError, UnavailableError


class DirectoryStore:
    """ports.RemoteStore. A file has its name when it is whole and on the disk; before, it is `NAME.part`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._root = url.removeprefix("file://")

    def put(self, name: str, paths: Sequence[str], timeout_s: float) -> int:
        """Write, sync, rename. A directory that hangs is not noticed here: the caller does not wait for ever."""
        with Content(paths) as content:
            self._store(name, content, timeout_s)
            return content.size

    def _store(self, name: str, content: Content, timeout_s: float) -> None:
        path = os.path.join(self._root, name)
        deadline = Deadline(timeout_s, path)
        aside = f"{path}.part"
        try:
            os.makedirs(os.path.dirname(path), mode=0o750, exist_ok=True)
            fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
            with open(fd, "wb") as file:
                file.writelines(content.chunks(deadline))
                file.flush()
                os.fsync(fd)
            os.rename(aside, path)
            sync_directory(os.path.dirname(path))
        except OSError as exc:
            raise UnavailableError(f"cannot write {path}: {exc.strerror or exc}") from exc

    def end(self, name: str, limit: int, timeout_s: float) -> bytes:
        """The last bytes of a file."""
        path = os.path.join(self._root, name)
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
                return file.read(limit)
        except FileNotFoundError as exc:
            raise RefusedError(f"there is no {path}", kind="no_copy") from exc
        except OSError as exc:
            raise UnavailableError(f"cannot read {path}: {exc.strerror or exc}") from exc
