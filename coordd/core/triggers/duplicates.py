"""The run of a trigger of a job with `dedupe`: triggers with the same key are the same run. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from coordd.core.jobs.after import floored
from coordd.core.jobs.arguments import fill, unpacked
from coordd.core.jobs.job import IDENT, Dedupe, Job, iso, triggered_run
from coordd.core.jobs.trigger import Trigger
from coordd.core.triggers.arrivals import Arrival, args_of, run_of
from coordd.errors import RefusedError

# A key up to this length is the id itself, if its characters may stand in one.
SHOWN_MAX = 80


def ident_of(dedupe: Dedupe, values: Mapping[str, str], timezone: str, at: float) -> str:
    """The id of a run that is triggered ``at`` that time (Unix seconds) with these values of all params.

    Raises RefusedError if the values make a key that is too long.
    """
    key = fill(dedupe.key, values)
    shown = len(key) <= SHOWN_MAX and IDENT.fullmatch(key) is not None
    text = key if shown else f"key.{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()[:24]}"
    return f"{text}.{iso(floored(at, dedupe.period_s, timezone))}" if dedupe.period_s else text


def run_of_arrival(job: Job, trigger: Trigger, arrival: Arrival) -> str:
    """The run of an arrival, the same at each look: a `dedupe` beside triggers has no period."""
    if job.dedupe is not None:
        try:
            values = unpacked(args_of(job, trigger, arrival))
            return triggered_run(job.name, ident_of(job.dedupe, {**job.params, **values}, job.timezone, 0.0))
        except RefusedError:
            pass  # it has no run under either id: registering it says why
    return run_of(job.name, trigger.name, arrival.key)
