"""The callers of the control socket, their roles, and the role that each method needs."""

from __future__ import annotations

import grp
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

import trio

from coordd.config.ownership import user_name

# Roles; each includes the rights of the lower ones.
ADMIN = 3
OPERATOR = 2
VIEWER = 0
NOBODY = -1  # viewer_group is set, and the caller is not in it

ROLE_NAMES = {ADMIN: "admin", OPERATOR: "operator", VIEWER: "viewer", NOBODY: "nobody"}

# The parameters that name the subject of a call, in the order of an audit record.
SUBJECTS = ("job", "id", "name", "node", "topic", "as", "note")


# Maximum concurrent look-ups of names.
LOOKUPS_MAX = 4

# Names are cached for this time (seconds), so that repeated connections rarely ask the directory. The groups themselves
# come from the kernel each time.
NAMES_KEPT_S = 10.0
NAMES_KEPT_MAX = 256


class Asked:
    """One call, for the audit."""

    __slots__ = ("id", "looked", "method", "recorded")

    def __init__(self, ident: Any, method: str) -> None:
        self.id = ident
        self.method = method
        self.recorded = False  # the method has written its own audit record
        self.looked = False  # its answer has what not everybody may read: lines of a log


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


class Names:
    """The names of users and groups, which may come from a directory server."""

    def __init__(self) -> None:
        self._lookups = trio.CapacityLimiter(LOOKUPS_MAX)
        self._names: dict[tuple[int, frozenset[int]], tuple[float, str, frozenset[str]]] = {}
        self._naming: dict[tuple[int, frozenset[int]], trio.Lock] = {}

    async def of(self, uid: int, gids: frozenset[int]) -> tuple[str, frozenset[str]]:
        """The names of a user and its groups. Only one look-up per user at a time, however often the user connects."""
        key = (uid, gids)
        turn = self._naming.setdefault(key, trio.Lock())
        try:
            async with turn:
                at, name, groups = self._names.get(key, (-NAMES_KEPT_S, "", frozenset[str]()))
                if trio.current_time() - at >= NAMES_KEPT_S:
                    name, groups = await trio.to_thread.run_sync(
                        _names, uid, gids, abandon_on_cancel=True, limiter=self._lookups
                    )
                    if len(self._names) >= NAMES_KEPT_MAX:
                        self._names.clear()
                    self._names[key] = (trio.current_time(), name, groups)
                return name, groups
        finally:
            statistics = turn.statistics()
            if not statistics.locked and not statistics.tasks_waiting:
                self._naming.pop(key, None)


def _names(uid: int, gids: Iterable[int]) -> tuple[str, frozenset[str]]:
    return user_name(uid), frozenset(name for name in map(_group_name, gids) if name)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return ""


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

    @property
    def may_change(self) -> bool:
        """True if a call changes something: it goes on to its end, and is recorded, also when its client is gone."""
        return self.privileged and not self.logs


def subject_of(params: dict[str, Any]) -> str:
    """The subject of a call, as far as its parameters name it."""
    named = [params[key] for key in SUBJECTS if isinstance(params.get(key), (str, int, float)) and params[key] != ""]
    return " ".join(str(value) for value in named)
