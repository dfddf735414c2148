"""coordctl node, job and election: the nodes, their jobs, and the elections between them."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from coordd.cli.options import EXIT_FAILED, EXIT_TIMED_OUT, EXIT_UNAVAILABLE, TABLE, Asked, Failed, Group, asked, say

# Timeout for shell completion (seconds): nobody waits longer at the Tab key.
COMPLETION_S = 1.0

# A backfill of more runs than this is asked for twice.
ASKED_TWICE = 1000

# How many fire times `job fires` shows without --from.
FIRES_SHOWN = 50

# How often (seconds) `node drain --wait` asks whether the runs have ended.
POLL_S = 0.5

# What to do about a drained node that nobody hears any more.
LOST = "coordctl run list --state started shows what runs where; what it ran is taken over once its lease is over"


def complete_jobs(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """The jobs of this node, for the shell's Tab key; empty when no daemon answers."""
    return [name for name in _known(context, "job.list", "name") if name.startswith(begun)]


def complete_runs(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """The latest runs, for the shell's Tab key."""
    return [run for run in _known(context, "run.list", "id") if run.startswith(begun)]


def _known(context: click.Context, method: str, key: str) -> list[str]:
    from coordd.cli.client import Client
    from coordd.errors import CoorddError

    with Client(context.ensure_object(Asked).socket, COMPLETION_S) as client:
        try:
            return [str(row[key]) for row in client.call(method) if key in row]
        except CoorddError:
            return []  # the shell gets no completions: an error message would spoil the command line


def seconds(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """A duration option: 90, 30s, 1h30m."""
    if value is None:
        return None
    from coordd.core.jobs.schedule import parse_duration

    try:
        return parse_duration(float(value) if value.replace(".", "", 1).isdigit() else value)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


# ---- nodes


@click.group(cls=Group)
def node() -> None:
    """The nodes of the cluster."""


@node.command("list")
def node_list() -> None:
    """Every node that this one knows of, itself included."""

    def draw(nodes: Any) -> None:
        from coordd.cli.show import tables

        tables.draw(tables.NODES, nodes, "No nodes.")

    asked().show(asked().call("node.list"), draw)


def until(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """An instant ahead, or a duration from now, in Unix seconds."""
    return None if value is None else _instant(value, 1)


def instant(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """An instant, or a duration before now, in Unix seconds."""
    return None if value is None else _instant(value, -1)


def _instant(value: str, direction: int) -> float:
    from coordd.core.jobs.schedule import parse_duration, parse_instant

    try:
        return time.time() + direction * parse_duration(value)
    except ValueError:
        try:
            return parse_instant(value, "UTC")
        except ValueError as exc:
            raise click.BadParameter(f"{exc}, or a duration such as 2h or 7d") from exc


def holding(command: Any) -> Any:
    """The options of what stops something: until when, and why."""
    ends = click.option(
        "--until", metavar="T", callback=until, help="It ends by itself then (UTC), or after this time: 2h, 7d."
    )
    return ends(click.option("--note", metavar="TEXT", help="Why; everybody sees it.")(command))


def _held(said: Any, text: str, more: str = "") -> None:
    from coordd.cli.show.phrases import held

    told = held({key: said.get(key) for key in ("until", "note")})
    click.echo(f"{text} {told}".rstrip() + more)
    for run in said.get("begun", ()):
        click.echo(f"{run} has begun, and starts: coordctl run cancel {run}")


@node.command("drain")
@click.argument("name", metavar="[NODE]", default="")
@holding
@click.option("--wait", is_flag=True, help="Wait until all runs on the node have ended.")
@click.option("--timeout", metavar="DURATION", callback=seconds, help="With --wait: exit 124 after this time.")
def node_drain(name: str, until: float | None, note: str | None, wait: bool, timeout: float | None) -> None:
    """Let a node take no new runs; its active runs continue. Any node can be asked; NODE is by default that one.

    The ledger keeps the drain: it survives restarts, until `node resume`.
    """
    answer = asked().call("node.drain", node=name, until=until, note=note)
    if not answer.get("kept", True):
        say(f"the ledger does not answer: {answer['node']} is drained only until its daemon ends")
    here = answer.get("self", True)
    if wait and (answer.get("active") or not here):
        answer = drained(answer, timeout)
    elif not here and answer["state"] != "draining":
        say(f"{answer['node']} still says {answer['state']}: it hears of its drain within seconds")
    drains = here or wait or answer["state"] == "draining"
    asked().show(
        answer,
        lambda said: _held(
            said,
            f"{said['node']} is {said['state']}" if drains else f"{said['node']} is granted nothing from now on",
            f"; {said['active']} of its runs continue",
        ),
    )


def _looked_at(answer: dict[str, Any]) -> tuple[str, int | None]:
    """How the node is now, and how many of its runs are active; None if nobody can tell yet."""
    if answer.get("self", True):
        status = asked().call("status")
        return status["state"], status["runs"]["active"]
    shown = [one for one in asked().call("node.list") if one["hostname"] == answer["node"]]
    if shown and shown[0]["state"] == "lost":
        raise Failed(f"{answer['node']} is lost: nobody can tell whether its runs have ended", hint=LOST)
    if not shown or shown[0]["state"] == "left":
        return "left", 0
    if shown[0].get("drained") and shown[0]["says"] != "draining":
        return "draining", None  # what it counts is from before its drain
    return shown[0]["says"], shown[0]["active"]


def drained(answer: dict[str, Any], timeout_s: float | None) -> dict[str, Any]:
    """Wait until no run is active on a draining node; its answer then."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    told: int | None = -1
    while True:
        state, active = _looked_at(answer)
        if state == "ready" or (active and state != "draining"):
            raise Failed(f"{answer['node']} is {state}: somebody has ended the drain")
        if active == 0:
            return {**answer, "state": state, "active": 0}
        if active != told:
            waits = "its answer" if active is None else f"{active} of its runs to end"
            say(f"{answer['node']} is draining: waiting for {waits}")
            told = active
        if deadline is not None and time.monotonic() >= deadline:
            left = "It is not known which runs" if active is None else f"{active} runs"
            raise Failed(f"{left} of {answer['node']} still run after {timeout_s:g} s", EXIT_TIMED_OUT)
        time.sleep(POLL_S)


@node.command("resume")
@click.argument("name", metavar="[NODE]", default="")
def node_resume(name: str) -> None:
    """Let a node take runs again after a drain; any node can be asked."""
    answer = asked().call("node.resume", node=name)
    resumed = not answer.get("self", True) and answer["state"] == "draining"
    if resumed:
        say(f"{answer['node']} still says {answer['state']}: it hears that its drain is over within seconds")
    told = "may take runs again" if resumed else f"is {answer['state']}"
    asked().show(answer, lambda said: click.echo(f"{said['node']} {told}"))


# ---- jobs


@click.group(cls=Group)
def job() -> None:
    """The jobs, their schedules, and what disables them."""


@job.command("list")
def job_list() -> None:
    """Every job file of this node, invalid ones too."""

    def draw(jobs: Any) -> None:
        from coordd.cli.show import tables

        tables.draw(tables.JOBS, jobs, "No jobs: put a file NAME.toml into the jobs directory, then coordctl reload.")

    asked().show(asked().call("job.list"), draw)


@job.command("show")
@click.argument("name", shell_complete=complete_jobs)
def job_show(name: str) -> None:
    """One job, with all values from its file and the defaults."""

    def draw(shown: Any) -> None:
        from coordd.cli.show import tables

        tables.draw_facts(shown, name)

    asked().show(asked().call("job.show", job=name), draw)


@job.command("next")
@click.argument("name", shell_complete=complete_jobs)
@click.option("--count", "-n", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many.")
def job_next(name: str, count: int) -> None:
    """When the job fires next, and the ids that its runs will have."""

    fires = asked().call("job.next", job=name, count=count)
    if asked().output != TABLE:
        asked().show(fires, lambda _: None)
    else:
        from coordd.cli.show import tables
        from coordd.cli.show.firing import fire_columns

        shown = asked().call("job.show", job=name)
        never = f"{name} does not fire again: its schedule has no further fire time."
        tables.draw(
            fire_columns(fires),
            fires,
            never if shown.get("schedule") else f"{name} has no schedule: it does not fire by time.",
        )
        if not shown.get("enabled", True):
            say(f"{name} is held: none of these starts until its job file says enabled = true")
        elif stopped := shown.get("suspended"):
            whose = "--all" if stopped.get("all") else name
            end = f"{stopped['until']}, or " if stopped.get("until") else ""
            say(f"{name} is suspended: none of these starts until {end}coordctl job resume {whose}")


@job.command("fires")
@click.argument("name", shell_complete=complete_jobs)
@click.option(
    "--from",
    "begin",
    metavar="T",
    callback=instant,
    help="Fire times from then on (UTC, included), or a duration before now: 7d.",
)
@click.option("--to", "end", metavar="T", callback=instant, help="Fire times up to then (included).")
def job_fires(name: str, begin: float | None, end: float | None) -> None:
    """What became of fire times: launched, coalesced, skipped, missed, rejected, suspended, blackout, limited, held.

    Without --from: the last 50. Equal neighbours are one line; --output json has every fire time.
    """

    def draw(fires: Any) -> None:
        from coordd.cli.show import tables
        from coordd.cli.show.brief import spans

        tables.draw(tables.DECISIONS, spans(fires), f"{name} had no fire time then.")

    asked().show(_fires(name, begin, end), draw)


def _fires(name: str, begin: float | None, end: float | None) -> list[dict[str, Any]]:
    """All fire times of that time, or the last ones: an answer has only the newest of many, and says so."""
    from coordd.cli.show.phrases import just_before

    found: list[dict[str, Any]] = []
    earlier = True
    while earlier and (begin is not None or len(found) < FIRES_SHOWN):
        part = asked().call("job.fires", job=name, **{"from": begin, "to": end})
        earlier = bool(part and part[0].pop("earlier", False))
        found = part + found
        if earlier:
            end = just_before(part[0])
    return found if begin is not None else found[-FIRES_SHOWN:]


@job.command("activate")
@click.argument("name", shell_complete=complete_jobs)
def job_activate(name: str) -> None:
    """Activate this node's definition of a job: it counts in the whole cluster, from now on."""

    def draw(said: Any) -> None:
        click.echo(f"{said['job']}: the definition {said['digest']} counts (number {said['sequence']})")

    asked().show(asked().call("job.activate", job=name), draw)


@job.command("suspend")
@click.argument("name", metavar="[NAME]", default="", shell_complete=complete_jobs)
@click.option("--all", "every", is_flag=True, help="All jobs of the cluster, also jobs to come.")
@holding
def job_suspend(name: str, every: bool, until: float | None, note: str | None) -> None:
    """Suspend a job, or all: no node starts its runs until then, or until it is resumed."""
    said = asked().call("job.suspend", **_which(name, every), until=until, note=note)
    asked().show(said, lambda said: _held(said, "all jobs are suspended" if every else f"{said['job']} is suspended"))


def _which(name: str, every: bool) -> dict[str, Any]:
    if bool(name) == every:
        raise click.UsageError("expected either the NAME of a job, or --all")
    return {"all": True} if every else {"job": name}


@job.command("resume")
@click.argument("name", metavar="[NAME]", default="", shell_complete=complete_jobs)
@click.option("--all", "every", is_flag=True, help="End the suspension of all jobs; single ones stay suspended.")
def job_resume(name: str, every: bool) -> None:
    """Resume a suspended job, or end the suspension of all jobs."""
    said = asked().call("job.resume", **_which(name, every))
    asked().show(said, lambda said: click.echo("jobs may run again" if every else f"{said['job']} may run again"))
    if said.get("all_suspended"):
        say("all jobs are suspended still: coordctl job resume --all")


@job.command("backfill")
@click.argument("name", shell_complete=complete_jobs)
@click.option("--from", "begin", metavar="T", callback=instant, help="The first fire time (UTC), or that long ago: 7d.")
@click.option("--to", "end", metavar="T", callback=instant, help="Up to here; this one is not included.")
@click.option("--order", type=click.Choice(["oldest", "newest"]), default="oldest", show_default=True, help="First.")
@click.option("--at-most", type=click.IntRange(1, 100), default=1, show_default=True, help="Runs at a time.")
@click.option(
    "--redo",
    type=click.Choice(["none", "failed", "all"]),
    default="none",
    show_default=True,
    help="Run again: nothing that was launched, what did not succeed, or everything.",
)
@click.option("--stop-after-failures", "stop", type=click.IntRange(min=0), metavar="K", help="Stop then. 0: never.")
@click.option("--dry-run", is_flag=True, help="Only show what it would run.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation of more than 1000 runs.")
@click.option("--no-wait", is_flag=True, help="Begin it, and do not show the progress.")
@click.option("--status", "look", is_flag=True, help="Show the last backfill of the job.")
@click.option("--cancel", "end_it", is_flag=True, help="Open no further runs. Those that are open go on.")
def job_backfill(
    name: str,
    begin: float | None,
    end: float | None,
    order: str,
    at_most: int,
    redo: str,
    stop: int | None,
    dry_run: bool,
    yes: bool,
    no_wait: bool,
    look: bool,
    end_it: bool,
) -> None:
    """Run the fire times of a range that is over; live fire times go first.

    The ledger keeps the backfill: it goes on without this command, this daemon and this node. Each fire time keeps the
    id of its run. Ctrl-C leaves it alone.
    """
    from coordd.cli.show import backfilling

    ask = asked()
    if look:
        nothing = f"No backfill of {name} in the last 30 days."
        ask.show(ask.call("job.backfills", job=name), lambda found: backfilling.draw(found, nothing))
        return
    if end_it:
        told = "cancelled; its open runs go on"
        ask.show(ask.call("job.backfill", job=name, cancel=True), lambda said: click.echo(f"{said['plan']} is {told}"))
        return
    if begin is None or end is None:
        raise click.UsageError("expected --from T and --to T, or --status, or --cancel")
    said = {"job": name, "from": begin, "to": end, "order": order, "at_most": at_most, "redo": redo}
    said["stop_after_failures"] = stop
    if dry_run:
        ask.show(ask.call("job.backfill", **said, dry_run=True), backfilling.foreseen)
        return
    if not yes and sys.stdin.isatty():
        foreseen = ask.call("job.backfill", **said, dry_run=True)
        if foreseen["runs"] > ASKED_TWICE:
            say(backfilling.sentence(foreseen))
            yes = click.confirm("Run all of them?", abort=True, err=True)
    answer = ask.call("job.backfill", **said, yes=yes or None)
    if ask.output == TABLE:
        click.echo(answer["plan"])
        say(backfilling.sentence(answer))
    if no_wait:
        ask.show(answer, lambda _: say(backfilling.left_alone(name)))
    else:
        _follow_backfill(name, answer)


def _follow_backfill(name: str, answer: dict[str, Any]) -> None:
    """Show the progress of a backfill until it has ended; exit 1 unless each of its runs has succeeded."""
    from coordd.cli.show import backfilling

    try:
        plan = backfilling.follow(name, answer["plan"], answer["runs"])
    except KeyboardInterrupt:
        say(backfilling.left_alone(name))
        raise
    if plan is None:
        raise Failed(f"no answer for {backfilling.AWAY_S:g} s; {backfilling.left_alone(name)}", EXIT_UNAVAILABLE)
    hint = f"coordctl job fires {name} --from {answer['from']} --to {answer['to']}"
    if isinstance(plan, str):
        raise Failed(f"the backfill {answer['plan']} of {name} {plan}", EXIT_FAILED, f"{hint} shows what it has run")
    asked().show(plan, lambda _: None)
    if plan["state"] != "done" or plan["failed"]:
        raise Failed(
            f"the backfill of {name} is {plan['state']}: {plan['succeeded']} succeeded, {plan['failed']} failed",
            EXIT_FAILED,
            f"{hint}; --redo failed runs them again",
        )


# ---- pools


@click.group("pool", cls=Group)
def pool() -> None:
    """Pools: runs of all jobs that name one share its size."""


@pool.command("list")
def pool_list() -> None:
    """Every pool: its size, the runs in it, and the runs that wait for it."""
    asked().show(asked().call("pool.list"), _draw)


def _draw(found: list[dict[str, Any]]) -> None:
    from coordd.cli.show import tables

    columns = [
        tables.Column("POOL", tables.text("name"), whole=True),
        *(tables.Column(key.upper(), tables.text(key), right=True) for key in ("size", "active", "waiting")),
        tables.Column("SET BY", tables.text("by")),
        tables.Column("UNTIL", tables.text("until")),
    ]
    tables.draw(columns, found, "No pools: name them in [pools] of coordd.toml.")


@pool.command("set")
@click.argument("name")
@click.argument("size", type=click.IntRange(min=0))
@click.option(
    "--until", metavar="T", callback=until, help="The configured size counts again then (UTC), or after: 2h, 7d."
)
def pool_set(name: str, size: int, until: float | None) -> None:
    """Give a pool another size in the whole cluster. 0: nothing in it starts. Active runs continue."""
    said = asked().call("pool.set", name=name, size=size, until=until)
    end = f" until {said['until']}" if said["until"] else ""
    asked().show(said, lambda said: click.echo(f"pool {said['name']}: {said['size']}{end}"))


@pool.command("unset")
@click.argument("name")
def pool_unset(name: str) -> None:
    """The size in [pools] of coordd.toml counts again."""
    said = asked().call("pool.unset", name=name)
    asked().show(said, lambda said: click.echo(f"pool {said['name']}: {said['size']}"))


# ---- elections


@click.group(cls=Group)
def election() -> None:
    """Elections: which node was to try first, and why."""


@election.command("list")
@click.option("--limit", "-n", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many.")
def election_list(limit: int) -> None:
    """The latest elections that this node took part in."""

    def draw(elections: Any) -> None:
        from coordd.cli.show import tables

        tables.draw(tables.ELECTIONS, elections, "No elections: no run has become due since this daemon was started.")

    asked().show(asked().call("election.list", limit=limit), draw)
