"""Definitions of jobs as bytes. A node keeps its earlier definitions for the runs that are
still open after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from coordd.core.jobs.job import Command, Job, SparkSubmit

# The launch of a job belongs to one of two classes. The bytes name the class.
_KINDS: dict[str, type[Command | SparkSubmit]] = {"command": Command, "spark": SparkSubmit}

# A job whose launch is of that class: msgspec converts it in one step, which counts with thousands of jobs.
_WHOLE: dict[str, type[msgspec.Struct]] = {
    name: msgspec.defstruct(name, [("launch", kind)], bases=(Job,), frozen=True, kw_only=True)
    for name, kind in _KINDS.items()
}


def pack(jobs: Iterable[Job]) -> bytes:
    """MessagePack: a list of maps, one for each definition."""
    return msgspec.msgpack.encode([_packed(job) for job in jobs])


def unpack(data: bytes) -> list[Job]:
    """Returns the definitions that ``pack`` was given. Raises ValueError.

    Another version may have written the bytes. Fields that this version does not know are ignored; missing fields get
    their defaults.
    """
    try:
        return [_unpacked(one) for one in msgspec.msgpack.decode(data, type=list[dict[str, Any]])]
    except (msgspec.MsgspecError, KeyError, RecursionError) as exc:
        raise ValueError(f"no definitions of jobs: {type(exc).__name__}: {exc!s:.200}") from exc


def _packed(job: Job) -> dict[str, Any]:
    kind = next(name for name, cls in _KINDS.items() if isinstance(job.launch, cls))
    return {"kind": kind, **{name: getattr(job, name) for name in Job.__struct_fields__}}


def _unpacked(told: dict[str, Any]) -> Job:
    whole = msgspec.convert(told, _WHOLE[told["kind"]])
    return Job(**{name: getattr(whole, name) for name in Job.__struct_fields__})
