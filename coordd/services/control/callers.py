"""Who asks on the control socket, in which role; and what a method takes to be called."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

# Roles, each with everything below it.
ADMIN = 3
OPERATOR = 2
OWNER = 1  # of one job only: the method looks which
VIEWER = 0
NOBODY = -1  # viewer_group is set, and the caller is not in it

# The parameters that say what a call is about, in the order in which an audit record shows them.
SUBJECTS = ("job", "id", "name", "node", "topic", "as", "note")


class Asked:
    """One request of a caller, for the audit."""

    __slots__ = ("id", "method", "recorded")

    def __init__(self, ident: Any, method: str) -> None:
        self.id = ident
        self.method = method
        self.recorded = False  # the method has said itself what it changed


class Caller(NamedTuple):
    """Who asks, as the kernel says."""

    uid: int
    groups: frozenset[str]
    role: int
    pid: int
    name: str
    asked: Asked | None = None

    def details(self) -> dict[str, Any]:
        """What an audit record says beside the user."""
        return {"caller_pid": self.pid, "request": self.asked.id if self.asked else None}


class Method(NamedTuple):
    """A method: what it does and the least role that may."""

    call: Callable[[dict[str, Any], Caller], Awaitable[Any]]
    role: int = VIEWER
    changes: bool = False  # the method asks itself for the right to operate its job
    logs: bool = False  # it changes nothing, and tells what not everybody may read

    @property
    def privileged(self) -> bool:
        """Not everybody may call it: what it does, and that it was refused, is recorded."""
        return self.role > VIEWER or self.changes or self.logs


def subject_of(params: dict[str, Any]) -> str:
    """What a call is about, as far as its parameters say."""
    named = [params[key] for key in SUBJECTS if isinstance(params.get(key), (str, int, float)) and params[key] != ""]
    return " ".join(str(value) for value in named)
