"""One arrival at a trigger, the run that it is, and which of many arrivals are taken now."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from coordd.core.jobs.arguments import merge_params, packed
from coordd.core.jobs.job import Job, triggered_run
from coordd.core.jobs.trigger import Trigger, filled
from coordd.core.redaction import redact_text
from coordd.errors import RefusedError


class Arrival(NamedTuple):
    """Something that starts one run. ``key``: the same on every node that sees it, and never that of another arrival.
    ``values``: for {trigger.NAME}; the same on every node too.
    """

    key: str
    values: dict[str, str]

    @property
    def shown(self) -> str:
        """For people."""
        return redact_text(self.values.get("path") or self.key)


class Choice(NamedTuple):
    """``taken``: to be registered now, oldest first; ``waiting``: new ones that have no room yet."""

    taken: list[Arrival]
    waiting: list[Arrival]


def ident(trigger: str, key: str) -> str:
    """The id of the run of an arrival. It depends on the trigger and the key alone: the ledger has it once."""
    return f"{trigger}.{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()[:24]}"


def run_of(job: str, trigger: str, key: str) -> str:
    """The run of an arrival at a job's trigger."""
    return triggered_run(job, ident(trigger, key))


def args_of(job: Job, trigger: Trigger, arrival: Arrival) -> str:
    """The arguments of its run, packed. Raises RefusedError for values that no argument may have."""
    try:
        given = {name: filled(text, arrival.values) for name, text in trigger.args.items()}
    except KeyError as exc:
        raise RefusedError(
            f"the arrival has no text, number or boolean for {{trigger.{exc.args[0]}}}",
            kind="bad_argument",
            hint="args of the trigger name it",
        ) from exc
    return packed(merge_params(job.params, given))


def choose(arrivals: Iterable[Arrival], consumed: Container[str], room: int, most: int) -> Choice:
    """Which arrivals to take now, in their order: at most ``room`` and ``most``. ``consumed``: keys."""
    fresh = [arrival for arrival in arrivals if arrival.key not in consumed]
    count = max(0, min(room, most))
    return Choice(fresh[:count], fresh[count:])


def unknown(arrivals: Sequence[Arrival], consumed: Container[str], most: int) -> list[Arrival]:
    """The first arrivals of which it is not known whether the ledger has their runs."""
    found: list[Arrival] = []
    for arrival in arrivals:
        if len(found) >= most:
            break
        if arrival.key not in consumed:
            found.append(arrival)
    return found
