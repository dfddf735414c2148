"""`coordctl plan DIR`: what a changed directory of job files would do."""

from __future__ import annotations

import math
import os
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from coordd.cli import options
from coordd.cli.options import EXIT_BAD_JOB, EXIT_FAILED, Failed, asked, say

if TYPE_CHECKING:
    from coordd.config.sections import Config
    from coordd.core.jobs.job import Job, Schedule
    from coordd.core.jobs.plan import Change

# Differences of one job that a table shows.
SHOWN_MAX = 10


@click.command("plan", cls=options.Command)
@click.argument("directory", metavar="DIR")
@click.option(
    "--config",
    "file",
    metavar="FILE",
    help="coordd.toml of the node (or COORDD_CONFIG) [default: /etc/coordd/coordd.toml].",
)
@click.pass_context
def plan(context: click.Context, directory: str, file: str | None) -> None:
    """Show what the job files of DIR would change if they became those of this node. Nothing is launched.

    For each job the fire times that come, go and move, 30 days back and ahead and around the next change of clocks.
    The node's coordd.toml is read for what job files name: pools, shared checks, sinks.

    Exit codes: 0 shown; 1 there is no such directory; 65 some of its files are wrong, and shown as such.
    """
    from coordd.adapters import onhost
    from coordd.config.jobfile import load_jobs

    if not os.path.isdir(directory):
        raise Failed(f"{directory} is not a directory", EXIT_FAILED)
    onhost.trust_service()
    found = load_jobs(directory, _config(file))
    now = time.time()
    ask = asked()
    rows = {row["name"]: row for row in ask.call("job.list")}
    errors = {
        name: list(dict.fromkeys([str(one) for one in found.problems[name] if one.severity == "error"]))
        for name in sorted(found.problems)
    }
    wrong = {name for name in errors if name and errors[name]}
    changes = [
        _change(name, rows.get(name), found.jobs.get(name), now, wrong=name in wrong)
        for name in sorted({*rows, *found.jobs, *wrong})
    ]
    ask.show([_plain(change) for change in changes], lambda _: _draw(changes, now))
    for texts in errors.values():
        for text in texts:
            say(text)
    if any(errors.values()):
        context.exit(EXIT_BAD_JOB)


def _config(file: str | None) -> Config:
    """The configuration of the asked node; the defaults, and a word about it, if this command cannot read it."""
    from coordd.config.sections import Config
    from coordd.config.settings import CONFIG_PATH, read_config

    config, problems = read_config(file, os.environ)
    without = "pools, shared checks and sinks that job files name are not known here"
    socket = asked().socket
    if config is None:
        for problem in problems:
            say(str(problem))
        say(f"warning: the node's configuration cannot be read: {without}")
        return Config()
    if not config.path:
        say(f"warning: there is no {CONFIG_PATH} here: {without}; name the node's file: --config FILE")
    elif os.path.realpath(config.control.socket) != os.path.realpath(socket):
        say(
            f"warning: {config.path} is of another node than the asked one: its control socket is"
            f" {config.control.socket}, not {socket}; name the node's file: --config FILE"
        )
    return config


def _change(name: str, row: dict[str, Any] | None, job: Job | None, now: float, *, wrong: bool = False) -> Change:
    from coordd.core.jobs.plan import Change, compare

    if wrong:
        return Change(name, "wrong")
    if row is not None and job is not None and row.get("digest") == job.digest:
        return compare(name, "same", None, None, now)
    old = _schedule(name) if row is not None and row.get("enabled") and row.get("schedule") else None
    change = "added" if row is None else "removed" if job is None else "changed"
    return compare(name, change, old, job.schedule if job is not None else None, now)


def _schedule(name: str) -> Schedule:
    """The schedule of a job as the daemon has it."""
    from coordd.core.jobs.job import Blackout
    from coordd.core.jobs.schedule import parse_schedule

    shown = asked().call("job.show", job=name)
    blackout = [
        Blackout(cron=one["cron"], duration_s=one["duration_s"])
        if "cron" in one
        else Blackout(start=_instant(one["from"], 0.0), end=_instant(one["to"], math.inf))
        for one in shown["blackout"]
    ]
    return parse_schedule(
        shown["schedule"],
        shown["timezone"],
        start=_instant(shown["start"], 0.0),
        end=_instant(shown["end"], math.inf),
        offset_s=shown["jitter_offset_s"],
        blackout=blackout,
    )


def _instant(text: str | None, instead: float) -> float:
    return datetime.fromisoformat(text).timestamp() if text else instead


def _plain(change: Change) -> dict[str, Any]:
    from coordd.core.jobs.job import iso

    return {
        "job": change.job,
        "change": change.change,
        "added": [iso(at) for at in change.added],
        "removed": [iso(at) for at in change.removed],
        "moved": [[iso(before), iso(after)] for before, after in change.moved],
        "launches_now": [iso(at) for at in change.launches_now],
        "compared_until": iso(change.cut_at) if change.cut_at is not None else None,
    }


def _draw(changes: list[Change], now: float) -> None:
    from coordd.cli.show import tables
    from coordd.cli.show.phrases import some
    from coordd.core.jobs.job import iso

    told = [change for change in changes if change.change != "same"]
    rows = [
        {
            "job": change.job,
            "change": change.change,
            "added": len(change.added),
            "removed": len(change.removed),
            "moved": len(change.moved),
            "now": ", ".join(iso(at) for at in change.launches_now) or ("" if change.change == "wrong" else "nothing"),
        }
        for change in told
    ]
    tables.draw(tables.PLAN, rows, "Nothing would change.")
    for change in told:
        lines = [
            *[(before, f"moves  {iso(before)} -> {iso(after)}") for before, after in change.moved],
            *[(at, f"comes  {iso(at)}") for at in change.added],
            *[(at, f"goes   {iso(at)}") for at in change.removed],
        ]
        ahead = sorted(line for line in lines if line[0] > now)
        if ahead:
            click.echo(f"\n{change.job}, from now on:")
        for _, text in ahead[:SHOWN_MAX]:
            click.echo(f"  {text}")
        if len(ahead) > SHOWN_MAX:
            click.echo(f"  and {len(ahead) - SHOWN_MAX} more (--output json has them all)")
        if change.cut_at is not None:
            click.echo(f"  compared until {iso(change.cut_at)}: it fires too often for more")
    wrong = sum(change.change == "wrong" for change in told)
    also = f"; {some(wrong, 'file')} cannot be judged" if wrong else ""
    would = f"{some(len(told) - wrong, 'job')} of {len(changes)} would change"
    say(f"{would}{also}; nothing from before the reload would be launched")
