"""What `expand` of a job says, and the ids of a group's members."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from coordd.core.ledger.words import FAILURE, LOST, SUCCESS

# A group has at most this many members: each is a row, an election and a launch.
MEMBERS_MAX = 1000

# Between the id of a group and the number of a member.
MEMBER = "~"

# The first day of `days` is that of the run.
OF_THE_RUN = "{date}"


class Expand(msgspec.Struct, frozen=True):
    """One run for each value of the parameter ``key``: ``values``, or ``days`` dates from ``begin`` on (OF_THE_RUN, or
    an ISO date). ``chunk``: as many values for each run, as a JSON list; 0: one, as it is.
    """

    key: str
    values: tuple[str, ...] = ()
    begin: str = ""
    days: int = 0
    chunk: int = 0

    @property
    def count(self) -> int:
        """The number of members."""
        return -(-(len(self.values) or self.days) // (self.chunk or 1))


def member(group: str, number: int) -> str:
    """The id of a member, from 0."""
    return f"{group}{MEMBER}{number}"


def rows_of(expand: Expand | None, run: str) -> Iterator[str]:
    """The runs that have a row each: of a group its members, else the run itself."""
    return iter((run,)) if expand is None else (member(run, number) for number in range(expand.count))


def group_of(run: str) -> str:
    """The group of a member; another run as it is."""
    group, mark, number = run.rpartition(MEMBER)
    is_member = mark and number.isascii() and number.isdecimal() and ("@" in group or "#" in group)
    return group if is_member else run


def number_of(run: str) -> int | None:
    """The number of a member; None for another run."""
    return int(run.rpartition(MEMBER)[2][:9]) if group_of(run) != run else None


def how_it_ended(states: Collection[str]) -> str:
    """The state of a group whose members have all ended with these states: success if all succeeded."""
    if set(states) == {SUCCESS}:
        return SUCCESS
    return FAILURE if {FAILURE, LOST} & set(states) else next(state for state in sorted(states) if state != SUCCESS)
