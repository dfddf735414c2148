"""coordctl run: list, show, trigger, stop and resolve runs, and read their logs."""

from __future__ import annotations

import shlex
from typing import Any

import click

from coordd.cli import waiting
from coordd.cli.jobs import complete_jobs, complete_runs, seconds
from coordd.cli.options import EXIT_FAILED, EXIT_TIMED_OUT, JSON, JSONL, TABLE, Failed, Group, asked, json_line, say
from coordd.core.ledger.words import STATES, SUCCESS, TERMINAL
from coordd.core.visible import visible

# Of how many runs operators search the newest ones; viewers fewer.
LIST_MAX = 10_000

# The effect of a cancellation, by the state of the run.
CANCELLED = {
    "started": "{} is being cancelled",
    "revoked": "{} will not run",
    "unknown": "{0} stays unknown: its holder is out of contact, and will end it if it comes back. Look at its output, "
    "then run `coordctl run resolve {0} --as success|failed`",
}


def _instant(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """An instant, or a duration before now, in Unix seconds."""
    if value is None:
        return None
    import time

    from coordd.core.jobs.schedule import parse_instant

    try:
        return parse_instant(value, "UTC")
    except ValueError:
        length_s = seconds(context, parameter, value)
        return None if length_s is None else time.time() - length_s


def _says_which(asked_for: str, run: str) -> None:
    """Accepts a job's name in place of a run's id: its newest run."""
    if asked_for != run:
        say(f"the newest run of {asked_for}: {run}")


@click.group(cls=Group)
def run() -> None:
    """Runs. A run is one occurrence of a job."""


@run.command("list")
@click.option("--job", shell_complete=complete_jobs, help="Only runs of this job.")
@click.option("--state", type=click.Choice(STATES), help="Only runs in this state.")
@click.option("--node", help="Only runs whose last attempt is or was on this node.")
@click.option(
    "--since",
    metavar="TIME",
    callback=_instant,
    help="Only runs that were requested, started or ended since then: 2h, or 2026-12-01T02:00 (UTC).",
)
@click.option("--limit", "-n", type=click.IntRange(1, LIST_MAX), default=100, show_default=True, help="How many.")
def run_list(job: str | None, state: str | None, node: str | None, since: float | None, limit: int) -> None:
    """The newest runs of the cluster."""
    from coordd.cli.show.phrases import runs_and_searched

    def draw(runs: Any) -> None:
        from coordd.cli.show import tables

        tables.draw(tables.RUNS, runs, "There are no such runs.")

    found, searched = runs_and_searched(
        asked().call("run.list", job=job, state=state, node=node, since=since, limit=limit, searched=True)
    )
    asked().show(found, draw)
    if searched:
        say(_how_far(searched, job, state))


def _how_far(searched: dict[str, Any], job: str | None, state: str | None) -> str:
    """The sentence about older runs that were not looked at."""
    of = (f" of {job}" if job else "") + (f" in state {state}" if state else "")
    narrower = [f"--{name}" for name, value in (("job", job), ("state", state)) if not value]
    further = (
        [f"{' and '.join(narrower)} {'search' if len(narrower) > 1 else 'searches'} further back"] if narrower else []
    )
    further += [f"operators search {LIST_MAX:,}"] if searched["searched"] < LIST_MAX else []
    told = f"searched the newest {searched['searched']:,} runs{of}, back to {searched['back_to']}"
    return visible(told + (f": {'; '.join(further)}" if further else ""))


@run.command("show")
@click.argument("ident", metavar="ID|JOB", shell_complete=complete_runs)
def run_show(ident: str) -> None:
    """One run with its attempts. For a job: its newest run."""

    def draw(shown: Any) -> None:
        from coordd.cli.show import tables

        tables.draw_run(shown)

    shown = asked().call("run.show", id=ident)
    _says_which(ident, shown["id"])
    asked().show(shown, draw)


# ---- trigger


def _arguments(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    arguments: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.BadParameter(f'expected K=V, found "{text[:80]}"')
        if key in arguments:
            raise click.BadParameter(f"{key} is given twice")
        arguments[key] = value
    return arguments


noted = click.option("--note", metavar="TEXT", default="", help="Why: it stands in the audit and in why.")


@run.command("trigger")
@click.argument("job", shell_complete=complete_jobs)
@click.option(
    "--arg", "args", metavar="K=V", multiple=True, callback=_arguments, help="The value of {K}; may be repeated."
)
@click.option("--id", "ident", metavar="ID", help="A repeated trigger with the same id starts nothing.")
@click.option("--node", metavar="NODE", help="Only this node may launch it, in each attempt.")
@noted
@click.option("--wait", is_flag=True, help="Wait for its end: exit 0 when it succeeded, else 1.")
@click.option("--timeout", metavar="DURATION", callback=seconds, help="With --wait: exit 124 after this (90s, 1h30m).")
@click.option("--dry-run", is_flag=True, help="Show the command; start nothing.")
@click.pass_context
def run_trigger(
    context: click.Context,
    job: str,
    args: dict[str, str],
    ident: str | None,
    node: str | None,
    note: str,
    wait: bool,
    timeout: float | None,
    dry_run: bool,
) -> None:
    """Run a job now, once. Prints the run's id; exit 1 if the run was rejected, revoked or missed at once."""
    if timeout is not None and not wait:
        raise click.UsageError("--timeout says how long to --wait: give both, or none")
    ask = asked()
    answer = ask.call(
        "run.trigger", job=job, args=args or None, id=ident, node=node, note=note, dry_run=dry_run or None
    )
    if dry_run:
        ask.show(answer, lambda said: click.echo(visible(shlex.join(said["argv"]))))
        return
    recorded = {"ledger": "recorded in the ledger", "node": "kept by this node until the ledger answers again"}
    if not wait:
        shown = waiting.first_look(answer)
        ask.show(answer | ({"state": shown["state"]} if shown else {}), lambda said: click.echo(said["id"]))
        if shown.get("state") in waiting.NOT_LAUNCHED:
            raise Failed(waiting.told(shown), EXIT_FAILED, f"coordctl why '{answer['id']}'")
        if ask.output == TABLE:
            again = "key" if answer.get("duplicate") else "id" if ident and answer.get("exists") else ""
            known = f"triggered before with the same {again}: nothing new starts"
            say(known if again else recorded.get(answer.get("durable"), "recorded"))
            if shown and (trouble := waiting.trouble(shown)):
                say(trouble)
            if again and shown.get("state") in TERMINAL:
                more = shown["state"] != SUCCESS and "members" not in answer  # a group is not run once more as a whole
                rerun = f"; coordctl run rerun '{answer['id']}' runs it once more"
                say(waiting.told(shown) + (rerun if more else ""))
        return
    if ask.output == TABLE:
        click.echo(answer["id"])
    ended = waiting.ended(answer["id"], answer.get("durable", ""), timeout)
    if ended is None:
        raise Failed(
            f"{answer['id']} has not ended after {timeout:g} s; it continues",
            EXIT_TIMED_OUT,
            f"coordctl why '{answer['id']}'",
        )
    if ask.output != TABLE:
        ask.show({**ended, "durable": answer.get("durable")}, lambda _: None)
    if ended["state"] != SUCCESS:
        context.exit(EXIT_FAILED)


# ---- stop and resolve


@run.command("cancel")
@click.argument("ident", metavar="ID", shell_complete=complete_runs)
@noted
def run_cancel(ident: str, note: str) -> None:
    """End a running attempt, on any node."""
    answer = asked().call("run.cancel", id=ident, note=note)
    asked().show(answer, lambda said: click.echo(CANCELLED.get(said["state"], CANCELLED["started"]).format(said["id"])))


@run.command("revoke")
@click.argument("ident", metavar="[ID]", default="", shell_complete=complete_runs)
@click.option("--job", help="All runs of this job that have not started; even if its file is gone.")
@noted
def run_revoke(ident: str, job: str | None, note: str) -> None:
    """Forbid a run that has not started. All nodes obey, those that are away too."""
    if bool(ident) == bool(job):
        raise click.UsageError("expected either the ID of a run, or --job NAME")
    if not job:
        answer = asked().call("run.revoke", id=ident, note=note)
        recorded = answer.get("recorded", True)  # an older daemon does not tell
        told = "will not run" if recorded else "is not recorded yet; it is forbidden in advance, and will not run"
        asked().show(answer, lambda said: click.echo(f"{said['id']} {told}"))
        return
    revoked: list[str] = []
    more = True
    while more:
        answer = asked().call("run.revoke", job=job, note=note)
        revoked += answer["revoked"]
        more = answer["more"] and answer["revoked"]  # those that are left may all be starting

    def draw(said: Any) -> None:
        for run in said["revoked"]:
            click.echo(f"{run} will not run")
        if not said["revoked"]:
            say(f"no run of {job} waits to be launched")

    asked().show({"job": job, "revoked": revoked}, draw)


@run.command("resolve")
@click.argument("ident", metavar="ID", shell_complete=complete_runs)
@click.option(
    "--as",
    "outcome",
    type=click.Choice(["success", "failed", "relaunch"]),
    required=True,
    help="How the run ended, or: start it again.",
)
def run_resolve(ident: str, outcome: str) -> None:
    """Resolve a run in the state unknown, after you have checked its output."""
    answer = asked().call("run.resolve", id=ident, **{"as": outcome})
    asked().show(answer, lambda said: click.echo(f"{said['id']} is {said.get('state') or outcome}"))


@run.command("rerun")
@click.argument("ident", metavar="ID", shell_complete=complete_runs)
@click.option("--with-children", is_flag=True, help="The runs after it, and after those, run once more too.")
@noted
def run_rerun(ident: str, with_children: bool, note: str) -> None:
    """Run a run that has ended once more, by the job file as it is now. It keeps its id and its arguments."""
    given = {"with_children": True} if with_children else {}
    asked().show(
        asked().call("run.rerun", id=ident, note=note, **given),
        lambda said: tell_again(said["id"], said, with_children),
    )


def tell_again(ident: str, said: Any, with_children: bool) -> None:
    """Which attempt it is, and which runs follow."""
    click.echo(f"{ident} is tried again: attempt {said['attempt']}")
    children = said.get("children", ())  # an older daemon does not know them
    for child in children:
        click.echo(visible(f"then {child}"))
    if with_children and not children:
        click.echo("No run follows it.")


# ---- logs


def _output(text: str) -> str:
    """The output of a program, safe for a terminal: lines, no escape sequences."""
    return visible(text.replace("\r\n", "\n"), lines=True)


@run.command("logs")
@click.argument("ident", metavar="ID|JOB", shell_complete=complete_runs)
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines until the run ends.")
@click.option("--attempt", type=click.IntRange(0), help="The number of the attempt [default: the last].")
@click.option(
    "--bytes",
    "limit",
    type=click.IntRange(1),
    help="At most this many bytes, from the end [default: 262144; without -f at most 786432].",
)
def run_logs(ident: str, follow: bool, attempt: int | None, limit: int | None) -> None:
    """The output of an attempt, from the node that ran it, which may be another one. For a job: its newest run.

    Without --follow whole lines from its end, and a note if the log is longer. With --follow through takeovers and
    retries, from the beginning or the last --bytes.
    """
    ask = asked()
    if "@" not in ident and "#" not in ident:
        job, ident = ident, ask.call("run.show", id=ident)["id"]
        _says_which(job, ident)
    if follow:
        _follow(ident, attempt, limit)
        return
    answer = ask.call("run.logs", id=ident, attempt=attempt, bytes=limit)
    if ask.output == TABLE:
        _says_where(ident, answer)
        if answer.get("cut"):
            size = len(answer["text"].encode())
            say(f"the log is longer: these are its last {size} bytes; all of it: coordctl run logs -f '{ident}'")
    ask.show(answer, lambda said: click.echo(_output(said["text"]), nl=False))


def _follow(ident: str, attempt: int | None, limit: int | None) -> None:
    ask, last = asked(), None
    given = {"attempt": attempt, "bytes": limit}
    params = {"id": ident, "follow": True} | {key: value for key, value in given.items() if value is not None}
    for part in ask.client.stream("run.logs", params):
        if ask.output == TABLE and "note" in part:
            say(visible(part["note"]))
        if "text" not in part:
            continue
        if ask.output == TABLE and (part.get("attempt"), part.get("node")) != last:
            last = part.get("attempt"), part.get("node")
            _says_where(ident, part)
        if ask.output in (JSON, JSONL):
            shown = {key: part[key] for key in ("attempt", "node") if key in part}
            click.echo(json_line({"id": ident, **shown, "text": part["text"]}))
        else:
            click.echo(_output(part["text"]), nl=False)


def _says_where(ident: str, said: dict[str, Any]) -> None:
    """For the person: which attempt of which other node this is."""
    if not said.get("here", True):
        copy = ", from its copy" if said.get("copy") else ""
        say(visible(f"{ident}, attempt {said['attempt']}, on {said['node']}{copy}:"))
