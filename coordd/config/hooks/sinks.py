"""All sinks of a configuration and its jobs: `[[sink]]` in job files, and what both kinds have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import msgspec

from coordd.config import addresses, values
from coordd.config.hooks.hook import SINK
from coordd.config.hooks.publisher import EVENTS
from coordd.config.hooks.sink import (
    ENDS,
    JOB_SINKS_MAX,
    ON_DISK,
    PLUGIN,
    SCHEMES,
    SinkHook,
    events_of,
    read_address,
    read_name,
)
from coordd.config.sections import Config
from coordd.core.jobs.arguments import nearest
from coordd.core.jobs.job import Job, Sink


def sinks_of(config: Config, jobs: Mapping[str, Job]) -> tuple[SinkHook, ...]:
    """All sinks: those of coordd.toml with the jobs that name them, and one for each address that job files have."""
    named = {sink.title: set(sink.jobs) for sink in config.sinks}
    own: dict[Sink, set[str]] = {}
    for job in jobs.values():
        for sink in job.sinks:
            (named.setdefault(sink.to, set()) if sink.named else own.setdefault(sink, set())).add(job.name)
    listed = [msgspec.structs.replace(sink, jobs=frozenset(named[sink.title])) for sink in config.sinks]
    for sink, names in own.items():
        hook = SinkHook(on=events_of(sink.on), to=sink.to, args=sink.args, jobs=frozenset(names))
        listed.append(msgspec.structs.replace(hook, name=f"{SINK}x{hook.digest[5:17]}"))
    return tuple(listed)


# ---- reading job files


def read_job_sinks(value: object, config: Config, report: Callable[[str], None]) -> tuple[Sink, ...]:
    """The `[[sink]]` of a job file; each problem is reported in a sentence."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        report("expected [[sink]], a list of tables: two brackets on each side")
        return ()
    if len(value) > JOB_SINKS_MAX:
        report(f"expected at most {JOB_SINKS_MAX} sinks, found {len(value)}")
        return ()
    found: list[Sink] = []
    for number, one in enumerate(value, 1):
        wrong: list[str] = []
        said = values.read_table(one, _IN_JOB, partial(_note, wrong))
        if "to" not in one and not wrong:
            wrong.append(f"to: expected an address, or the name of a [sink.NAME], found nothing: {SCHEMES['https'][0]}")
        elif not wrong:
            wrong += _of_job(said, config)
        for message in wrong:
            report(f"sink {number}: {message}")
        if not wrong:
            found.append(Sink(**said))
    return tuple(found)


def _note(wrong: list[str], key: str, message: str) -> None:
    wrong.append(f"{key}: {message}")


def _of_job(said: Mapping[str, Any], config: Config) -> Iterator[str]:
    """Problems between the keys of one `[[sink]]`, and of its address on this node."""
    if "://" in said["to"]:
        yield from faults(said["to"], insecure=config.cluster.allow_insecure)
        return
    known = [sink.title for sink in config.sinks]
    if said["to"] not in known:
        yield f"to: there is no [sink.{said['to']}] in coordd.toml; {nearest(said['to'], known)}"
    elif len(said) > 1:
        yield f"on and args of a sink by name are those of [sink.{said['to']}] in coordd.toml"


def faults(to: str, *, insecure: bool) -> Iterator[str]:
    """Why this node cannot or must not send outcomes there, as sentences."""
    scheme = to.partition("://")[0]
    if scheme not in (*ON_DISK, PLUGIN):
        for why in () if insecure else addresses.insecure(to):
            yield f"to: {why}; set [cluster] allow_insecure = true to accept that"
    if scheme == "parquet" and find_spec("pyarrow") is None:
        yield "to: parquet:// needs the package pyarrow, which is not installed: pip install 'coordd[parquet]'"


def conflicts(config: Config) -> Iterator[tuple[str, str]]:
    """(setting, sentence) for each section whose address cannot be used here."""
    for sink in config.sinks:
        for why in faults(sink.to, insecure=config.cluster.allow_insecure):
            yield f"sink.{sink.title}", why
    for publisher in config.publishers:
        for one in publisher.to:
            for why in faults(one, insecure=config.cluster.allow_insecure) if one != EVENTS else ():
                yield f"publish.{publisher.name}", why


def _to(value: object) -> str:
    """An address, or the name of a section."""
    said = values.text(value)
    return read_address(said) if "://" in said else read_name(said)


_IN_JOB: dict[str, values.Reader] = {"to": _to, "on": values.one_of(*ENDS), "args": values.flag}
