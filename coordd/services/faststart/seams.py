"""What adapters/faststart gives to the services here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class ClassArchive(Protocol):
    """The file with the classes of one Spark and one Java; it may not exist. Everything here blocks shortly."""

    @property
    def path(self) -> str: ...
    @property
    def part(self) -> str:
        """The file while it is made."""

    @property
    def spark(self) -> str:
        """The Spark's home, for people."""

    @property
    def java(self) -> str:
        """The Java's home, for people."""

    def usable(self) -> str:
        """Why it cannot be used; "" if it can."""

    def obstacle(self) -> str:
        """Why none can be made here; "" if one can."""

    def training(self, work: str, limit_s: float) -> tuple[list[str], dict[str, str]]:
        """The command that makes ``part`` within that time, and its environment. ``work``: an empty directory."""

    def trial(self, path: str = "") -> tuple[list[str], dict[str, str]]:
        """The command that fails if Java refuses the file (default: the finished one)."""

    def made(self) -> bool:
        """True if ``part`` is there."""

    def accept(self) -> None:
        """``part`` becomes the file. Raises OSError."""

    def discard(self) -> None:
        """Remove both files. Raises OSError."""


class PreparedServer(Protocol):
    """A server of Spark Connect that waits for one run. Everything here blocks shortly."""

    @property
    def ready(self) -> bool:
        """True if it has answered a query."""

    def ended(self) -> bool:
        """True if it is gone, with its files."""

    def give(self) -> Mapping[str, object]:
        """An attempt takes it: what the spec says about it."""

    def close(self) -> None:
        """It is not wanted any more; an attempt that has taken it keeps it."""
