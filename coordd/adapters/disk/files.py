"""Files that survive a crash: atomic writes, and the few numbers that a node must remember over a restart."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from coordd.core.clock import CLOCK_BLOCK
from coordd.errors import UnavailableError

# A file that could not be read is kept beside the new one; more copies than this say nothing new.
BAD_COPIES_MAX = 8

# Larger than any state file of ours can be: what is longer is not read into memory.
STATE_BYTES_MAX = 64 * 1024


def sync_directory(path: str) -> None:
    """Make the names in a directory durable: a file's own fsync does not cover its name."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: str, data: bytes, *, mode: int = 0o600) -> None:
    """Replace a file whole: after a crash there is the old content or the new one, never a part.

    Raises OSError, and then the old content is still there.
    """
    temporary = f"{path}.new"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.rename(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    sync_directory(os.path.dirname(path) or ".")


def set_aside(path: str) -> str:
    """Keep a spoilt file as ``PATH.bad-N``, and return that name. Raises UnavailableError."""
    names = [f"{path}.bad-{number}" for number in range(1, BAD_COPIES_MAX + 1)]
    kept = next((name for name in names if not os.path.exists(name)), names[-1])
    try:
        os.rename(path, kept)
    except OSError as exc:
        raise UnavailableError(f"cannot move {path} aside: {exc.strerror or exc}") from exc
    return kept


class NodeState(NamedTuple):
    """What a node remembers. ``boots`` counts starts, ``clock_mark`` is the Lamport clock's high-water mark.

    ``ledgers`` names which life of each ledger (by its URL) it saw last: whoever never saw one may begin with an empty
    one. ``pin`` is the identity of the ledger that it has used, and the address where that was; "" and "" when none
    was. ``warning`` is a sentence for the log when the numbers had to be made up, else "".
    """

    boots: int
    clock_mark: int
    warning: str
    ledgers: dict[str, str]
    pin: tuple[str, str] = ("", "")


class StateFile:
    """A node's NodeState in one small file, replaced atomically.

    Losing it is harmful but not fatal, so it never keeps a node from starting. What the numbers protect is
    order: peers ignore an incarnation whose boot counter is below one they know, and a clock that went back
    would place new events before old ones. Both only have to *grow*. So when the file is gone or spoilt

    - the boot counter goes on from the wall clock's seconds, which is above any count of starts; this also
      serves a machine that was installed anew under its old name;
    - the clock goes on from what the node's own journal has seen, plus two blocks for stamps that were sent
      and not journalled. Not from the wall clock: peers refuse such a jump as absurd, for good;
    - a spoilt file is kept as ``NAME.bad-N`` for whoever wants to know what happened.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def load(self, *, wall_s: float, highest_clock: Callable[[], int]) -> NodeState:
        """Read the state. ``wall_s`` is Unix time; ``highest_clock`` is asked only when the file is of no use.

        Raises:
            UnavailableError: the file may be good, but the disk or its permissions do not let us read it.
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
                return NodeState(boots, clock_mark, "", marks, pin=_pin(fields.get("pin")))
        except (ValueError, TypeError, KeyError, RecursionError):
            pass  # spoilt, like a wrong type: both are answered below
        kept = set_aside(self.path)
        return self._made_up(wall_s, highest_clock(), f"{self.path} was not readable, kept as {kept}; {_GOES_ON}")

    def save(
        self, boots: int, clock_mark: int, ledgers: Mapping[str, str] | None = None, pin: tuple[str, str] = ("", "")
    ) -> None:
        """Write the state; it is on the disk when this returns.

        Raises:
            UnavailableError: the disk does not take it. The old state is still there.
        """
        fields: dict[str, object] = {"boots": boots, "clock_mark": clock_mark}
        if ledgers:
            fields["ledgers"] = dict(ledgers)
        if pin[0]:
            fields["pin"] = {"identity": pin[0], "address": pin[1]}
        data = json.dumps(fields).encode() + b"\n"
        try:
            write_atomic(self.path, data)
        except OSError as exc:
            raise UnavailableError(f"cannot write {self.path}: {exc.strerror or exc}") from exc

    def _made_up(self, wall_s: float, highest_clock: int, warning: str) -> NodeState:
        return NodeState(int(wall_s), highest_clock + 2 * CLOCK_BLOCK if highest_clock else 0, warning, {})


def _pin(said: object) -> tuple[str, str]:
    """The pin as the file has it; none when it is no pin: then the node compares as at its first start."""
    if isinstance(said, dict) and isinstance(said.get("identity"), str) and isinstance(said.get("address"), str):
        return said["identity"], said["address"]
    return "", ""


_GOES_ON = "the boot counter goes on from the wall clock, the logical clock from the journal"
