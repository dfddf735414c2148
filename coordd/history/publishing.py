"""Output that appears in one step."""

from __future__ import annotations

import fcntl
import glob
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from typing import NamedTuple, Self

from coordd.errors import ConfigError, RefusedError, UnavailableError
from coordd.guard import exchange

# Who published the present output; compared by token before it is replaced.
PUBLISHED_BY = "_published.json"

# The version of the tables.
LAYOUT_FILE = "_layout"

# Directories in a staging that are not published.
SCRATCH = ("_journals", "_fresh")

# Timeout (seconds) for a concurrent publication of another attempt; it takes milliseconds.
LOCK_TIMEOUT_S = 10.0


class Owner(NamedTuple):
    """The attempt of this process; zeros and empty texts if it was started by hand."""

    job: str = ""
    run: str = ""
    attempt: int = 0
    token: int = 0
    node: str = ""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Owner:
        """From the environment that the launcher sets."""
        try:
            attempt, token = int(environ.get("COORDD_ATTEMPT") or 0), int(environ.get("COORDD_TOKEN") or 0)
        except ValueError as exc:
            raise ConfigError(f"COORDD_ATTEMPT and COORDD_TOKEN must be whole numbers: {exc}") from exc
        text = {name: environ.get(f"COORDD_{name.upper()}", "") for name in ("job", "run", "node")}
        return cls(attempt=attempt, token=token, **text)


class Staging:
    """A directory beside the output, named after the token, that replaces the output in one step or not at all."""

    def __init__(self, output: str, owner: Owner) -> None:
        self.output = local("--output", output)
        self.owner = owner
        self._read_inode: int | None = None  # of the output that the staged one adds to
        self._prefix = os.path.join(os.path.dirname(self.output), f".{os.path.basename(self.output)}.staging-")
        # A run by hand has no token; its pid replaces it.
        self.path = self._prefix + (f"{owner.token}-{owner.attempt}" if owner.token else f"pid{os.getpid()}")

    def __enter__(self) -> Self:
        shutil.rmtree(self.path, ignore_errors=True)
        os.makedirs(self.path)
        return self

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def readable(self, layout: int) -> str:
        """The directory with the present output, "" if there is none. Raises ConfigError if a newer version wrote it,
        or an older one in another layout: what came from segments that were pruned since is in no journal.
        """
        self._published()
        self._read_inode = self._inode()
        there = self._layout()
        if there > layout:
            raise ConfigError(
                f"{self.output} was written by a newer coordd (layout {there}, this one writes {layout});"
                " use that version, or give another --output"
            )
        if there == layout:
            return self.output
        if os.path.exists(os.path.join(self.output, PUBLISHED_BY)):
            raise ConfigError(
                f"{self.output}: expected tables of layout {layout}, found layout {there} of an older coordd; give"
                " another --output, or --rebuild: it reads the segments that are there again, and what came from"
                " pruned ones is lost"
            )
        return ""

    def _inode(self) -> int:
        """What tells one published directory from the next; 0 if there is none."""
        try:
            return os.stat(self.output).st_ino
        except FileNotFoundError:
            return 0

    def _layout(self) -> int:
        try:
            with open(os.path.join(self.output, LAYOUT_FILE), encoding="utf-8") as file:
                return int(file.read())
        except FileNotFoundError:
            return 0
        except ValueError as exc:
            raise ConfigError(f"{self.output}/{LAYOUT_FILE} is damaged ({exc}); give another --output") from exc

    def publish(self, layout: int = 0) -> None:
        """Replace the output with the staged one, and remove the staging of older attempts.

        Raises RefusedError when an attempt with a higher token has published meanwhile: then we are the zombie.
        """
        for name in SCRATCH:
            shutil.rmtree(os.path.join(self.path, name), ignore_errors=True)
        write_file(os.path.join(self.path, LAYOUT_FILE), f"{layout}\n")
        write_file(os.path.join(self.path, PUBLISHED_BY), json.dumps(self.owner._asdict()) + "\n")
        lock = os.open(f"{self._prefix}lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock(lock)
            there = self._published()
            if there.job == self.owner.job and there.token > self.owner.token > 0:
                raise RefusedError(
                    f"{self.output} was published by {there.run} under token {there.token}; ours is {self.owner.token}",
                    kind="stale",
                    hint="another attempt has taken over; nothing of this one is kept",
                )
            if self._read_inode not in (None, self._inode()):
                raise RefusedError(
                    f"{self.output} was published by {there.run or 'another process'} while this one read it",
                    kind="stale",
                    hint="run it again: it then adds to the new output",
                )
            _replace(self.path, self.output)
            self._clear_older()
        finally:
            os.close(lock)  # this also releases the lock

    def _lock(self, lock: int) -> None:
        until = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise UnavailableError(
                        f"another process has held {self._prefix}lock for {LOCK_TIMEOUT_S:g} s"
                    ) from None
                time.sleep(0.05)
            else:
                return

    def _published(self) -> Owner:
        """Who published the present output. A directory with other files must not be replaced."""
        try:
            with open(os.path.join(self.output, PUBLISHED_BY), encoding="utf-8") as file:
                return Owner(**json.load(file))
        except FileNotFoundError:
            if os.path.isdir(self.output) and os.listdir(self.output):
                raise ConfigError(f"--output {self.output} holds other files; give a directory of its own") from None
            return Owner()
        except NotADirectoryError:
            raise ConfigError(f"--output {self.output} exists and is not a directory") from None
        except (ValueError, TypeError) as exc:
            raise ConfigError(f"{self.output}/{PUBLISHED_BY} is damaged ({exc}); remove it to publish again") from exc

    def _clear_older(self) -> None:
        """Remove the staging of dead attempts; if one of them still writes, it is older, and fails."""
        for path in glob.glob(glob.escape(self._prefix) + "[0-9]*"):
            token = path.removeprefix(self._prefix).partition("-")[0]
            if token.isdigit() and int(token) < self.owner.token:
                shutil.rmtree(path, ignore_errors=True)


def local(option: str, path: str) -> str:
    """The absolute path of a local file or directory, also from ``file:///PATH``.

    Raises ConfigError for another scheme or host: what is there cannot be replaced in one step.
    """
    uri = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(//([^/]*))?(?=/|$)", path)
    if uri is None:
        return os.path.abspath(path)
    scheme, host, rest = uri[1].lower(), uri[3] or "", path[uri.end() :]
    if scheme != "file" or host not in ("", "localhost") or not rest:
        raise ConfigError(
            f"{option} {path}: expected a local path or file:///PATH, found"
            f" {f'the scheme {scheme}' if scheme != 'file' else f'the host {host!r}' if host else 'no path'};"
            " give a local directory (it may be a mounted one), and copy it elsewhere after the run"
        )
    return os.path.abspath(rest)


def write_file(path: str, text: str) -> None:
    """Write a whole file or none; its directory is created if missing."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise


def _replace(new: str, old: str) -> None:
    """Put ``new`` in the place of ``old``, and remove the old content."""
    if not os.path.lexists(old):
        os.rename(new, old)
        return
    if exchange(new, old):
        shutil.rmtree(new)
        return
    # A file system without exchange (NFS): two renames; for an instant there is no output.
    aside = f"{new}-replaced"
    os.rename(old, aside)
    os.rename(new, old)
    shutil.rmtree(aside)
