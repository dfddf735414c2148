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


class NodeState(NamedTuple):
    """What a node remembers. ``boots`` counts starts, ``clock_mark`` is the Lamport clock's high-water mark.

    ``ledgers`` names which life of each ledger (by its URL) it saw last: whoever never saw one may begin with an empty
    one. ``warning`` is a sentence for the log when the numbers had to be made up, else "".
    """

    boots: int
    clock_mark: int
    warning: str = ""
    ledgers: dict[str, str] = {}


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
                return NodeState(boots, clock_mark, ledgers={str(url): str(mark) for url, mark in known.items()})
        except (ValueError, TypeError, KeyError, RecursionError):
            pass  # spoilt, like a wrong type: both are answered below
        kept = self._set_aside()
        return self._made_up(wall_s, highest_clock(), f"{self.path} was not readable, kept as {kept}; {_GOES_ON}")

    def save(self, boots: int, clock_mark: int, ledgers: Mapping[str, str] | None = None) -> None:
        """Write the state; it is on the disk when this returns.

        Raises:
            UnavailableError: the disk does not take it. The old state is still there.
        """
        fields = {"boots": boots, "clock_mark": clock_mark, **({"ledgers": dict(ledgers)} if ledgers else {})}
        data = json.dumps(fields).encode() + b"\n"
        try:
            write_atomic(self.path, data)
        except OSError as exc:
            raise UnavailableError(f"cannot write {self.path}: {exc.strerror or exc}") from exc

    def _made_up(self, wall_s: float, highest_clock: int, warning: str) -> NodeState:
        return NodeState(int(wall_s), highest_clock + 2 * CLOCK_BLOCK if highest_clock else 0, warning)

    def _set_aside(self) -> str:
        names = [f"{self.path}.bad-{number}" for number in range(1, BAD_COPIES_MAX + 1)]
        kept = next((name for name in names if not os.path.exists(name)), names[-1])
        try:
            os.rename(self.path, kept)
        except OSError as exc:
            raise UnavailableError(f"cannot move {self.path} aside: {exc.strerror or exc}") from exc
        return kept


_GOES_ON = "the boot counter goes on from the wall clock, the logical clock from the journal"
