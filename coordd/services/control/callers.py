"""The callers of the control socket, their roles, and the role that each method needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

# Roles; each includes the rights of the lower ones.
ADMIN = 3
OPERATOR = 2
VIEWER = 0
NOBODY = -1  # viewer_group is set, and the caller is not in it

ROLE_NAMES = {ADMIN: "admin", OPERATOR: "operator", VIEWER: "viewer", NOBODY: "nobody"}

# The parameters that name the subject of a call, in the order of an audit record.
SUBJECTS = ("job", "id", "name", "node", "topic", "as", "note")


class Asked:
    """One call, for the audit."""

    __slots__ = ("id", "method", "recorded")

    def __init__(self, ident: Any, method: str) -> None:
        self.id = ident
        self.method = method
        self.recorded = False  # the method has written its own audit record


class Caller(NamedTuple):
    """The caller, as identified by the kernel."""

    uid: int
    groups: frozenset[str]
    role: int
    pid: int
    name: str
    asked: Asked | None = None

    def details(self) -> dict[str, Any]:
        """The caller's fields in an audit record, beside the user."""
        return {"caller_pid": self.pid, "request": self.asked.id if self.asked else None}


class Method(NamedTuple):
    """A method: its function and the lowest role that may call it."""

    call: Callable[[dict[str, Any], Caller], Awaitable[Any]]
    role: int = VIEWER
    changes: bool = False  # the method itself checks the right to operate its job
    logs: bool = False  # it changes nothing, but not everybody may read its answer

    @property
    def privileged(self) -> bool:
        """True for a privileged method: its calls are recorded, done or refused."""
        return self.role > VIEWER or self.changes or self.logs


def subject_of(params: dict[str, Any]) -> str:
    """The subject of a call, as far as its parameters name it."""
    named = [params[key] for key in SUBJECTS if isinstance(params.get(key), (str, int, float)) and params[key] != ""]
    return " ".join(str(value) for value in named)
