"""Files that survive a crash: atomic writes, and the few numbers that a node must keep over a restart."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from typing import NamedTuple

from coordd.core.clock import CLOCK_BLOCK
from coordd.core.names import NAME
from coordd.errors import UnavailableError

# Maximum number of damaged files that are kept; more copies would not tell more.
BAD_COPIES_MAX = 8

# Our state files are always smaller; a longer file is not read into memory.
STATE_BYTES_MAX = 64 * 1024

# How the name of a file ends that takes another's place once it is whole.
UNFINISHED = ".new"


def sync_directory(path: str) -> None:
    """Make the names in a directory durable: a file's own fsync does not cover its name."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: str, data: bytes, *, like: os.stat_result | None = None) -> None:
    """Replace a file atomically: after a crash it has the old content or the new one, never a part.

    The new file is its owner's alone (0600), or has the mode of ``like``, and as root its owner and group too. Raises
    OSError. Then the old content is still there; or the new one is, and a power cut may take it back, because the
    directory could not be synced.
    """
    temporary = path + UNFINISHED
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            if like is not None:
                if os.geteuid() == 0:
                    os.fchown(fd, like.st_uid, like.st_gid)
                os.fchmod(fd, stat.S_IMODE(like.st_mode))
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.rename(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    sync_directory(os.path.dirname(path) or ".")


def make_directory(path: str, mode: int) -> None:
    """Make a directory, unless it is there, and look whether it can be written.

    Raises UnavailableError if it cannot.
    """
    try:
        os.makedirs(path, mode=mode, exist_ok=True)
        probe = os.path.join(path, f".probe-{os.getpid()}")
        with open(probe, "wb") as file:
            file.write(b"x")
        os.unlink(probe)
    except OSError as exc:
        raise UnavailableError(
            f"{path} cannot be written: {exc.strerror or exc}; set [node] state_dir and runtime_dir, "
            "or give this user the directory"
        ) from exc


def set_aside(path: str) -> str:
    """Keep a damaged file as ``PATH.bad-N``, and return that name. Raises UnavailableError."""
    names = [f"{path}.bad-{number}" for number in range(1, BAD_COPIES_MAX + 1)]
    kept = next((name for name in names if not os.path.exists(name)), names[-1])
    try:
        os.rename(path, kept)
    except OSError as exc:
        raise UnavailableError(f"cannot move {path} aside: {exc.strerror or exc}") from exc
    return kept


def kept_aside(path: str) -> str:
    """Set a damaged file aside; the end of a sentence that says where it is now, or why it stays."""
    try:
        return f", kept as {set_aside(path)}"
    except UnavailableError as exc:
        return f"; {exc}"


class NodeState(NamedTuple):
    """A node's state. ``boots`` counts starts, ``clock_mark`` is the Lamport clock's high-water mark.

    ``ledgers`` has the last known epoch of each ledger (by its URL): only a node that never saw a ledger may start with
    an empty one. ``pin`` is the identity and the address of the ledger that the node has used, or "" and "".
    ``warning`` is a sentence for the log if the numbers had to be replaced, otherwise "". ``name`` is what the machine
    called itself when the node took its name from it, otherwise "".
    """

    boots: int
    clock_mark: int
    warning: str
    ledgers: dict[str, str]
    pin: tuple[str, str] = ("", "")
    name: str = ""


class StateFile:
    """A node's NodeState in one small file, replaced atomically.

    Losing it is harmful but not fatal, so it never prevents a start. The numbers protect the order of events: peers
    ignore an incarnation whose boot counter is below a known one, and a clock that went back would place new events
    before old ones. Both only have to *grow*. So if the file is missing or damaged

    - the boot counter continues from the wall clock's seconds, which is above any count of starts; this also works for
    a machine that was reinstalled under its old name; - the clock continues from the highest stamp in the node's own
    journal, plus two blocks for stamps that were sent but not journalled. The wall clock cannot replace it: peers would
    always refuse such a jump as absurd; - a damaged file is kept as ``NAME.bad-N`` for an investigation.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def load(self, *, wall_s: float, highest_clock: Callable[[], int]) -> NodeState:
        """Read the state. ``wall_s`` is Unix time; ``highest_clock`` is called only if the file is unusable.

        Raises:
            UnavailableError: the file may be good, but cannot be read (disk or permissions).
        """
        try:
            with open(self.path, "rb") as file:
                data = file.read(STATE_BYTES_MAX)
        except FileNotFoundError:
            found = highest_clock()
            lost = f"{self.path} is gone though the journal is not; {_GOES_ON}" if found else ""
            return self._made_up(wall_s, found, lost)
        except OSError as exc:
            raise UnavailableError(f"cannot read {self.path}: {exc.strerror or exc}") from exc
        try:
            fields = json.loads(data)
            boots, clock_mark = fields["boots"], fields["clock_mark"]
            if type(boots) is int and type(clock_mark) is int and boots >= 0 and clock_mark >= 0:
                ledgers = fields.get("ledgers", {})
                known = ledgers if isinstance(ledgers, dict) else {}
                marks = {str(url): str(mark) for url, mark in known.items()}
                name = fields.get("name")
                return NodeState(boots, clock_mark, "", marks, _pin(fields.get("pin")), _name(name))
        except (ValueError, TypeError, KeyError, RecursionError):
            pass  # damaged, like a wrong type: both are handled below
        kept = set_aside(self.path)
        return self._made_up(wall_s, highest_clock(), f"{self.path} was not readable, kept as {kept}; {_GOES_ON}")

    def save(
        self,
        boots: int,
        clock_mark: int,
        ledgers: Mapping[str, str] | None = None,
        pin: tuple[str, str] = ("", ""),
        name: str = "",
    ) -> None:
        """Write the state; it is on the disk when this returns.

        Raises:
            UnavailableError: the disk refuses it. The old state is still there.
        """
        fields: dict[str, object] = {"boots": boots, "clock_mark": clock_mark}
        if ledgers:
            fields["ledgers"] = dict(ledgers)
        if pin[0]:
            fields["pin"] = {"identity": pin[0], "address": pin[1]}
        if name:
            fields["name"] = name
        data = json.dumps(fields).encode() + b"\n"
        try:
            write_atomic(self.path, data)
        except OSError as exc:
            raise UnavailableError(f"cannot write {self.path}: {exc.strerror or exc}") from exc

    def _made_up(self, wall_s: float, highest_clock: int, warning: str) -> NodeState:
        return NodeState(int(wall_s), highest_clock + 2 * CLOCK_BLOCK if highest_clock else 0, warning, {})


def _pin(said: object) -> tuple[str, str]:
    """The pin from the file; an invalid pin counts as none, so the node compares ledgers as at its first start."""
    if isinstance(said, dict) and isinstance(said.get("identity"), str) and isinstance(said.get("address"), str):
        return said["identity"], said["address"]
    return "", ""


def _name(said: object) -> str:
    """The name from the file; one that no node can have counts as none."""
    return said if isinstance(said, str) and NAME.fullmatch(said) else ""


_GOES_ON = "the boot counter continues from the wall clock, the logical clock from the journal"
