"""coordctl run: list, show, trigger, stop, settle, and read what they wrote."""

from __future__ import annotations

import shlex
import time
from typing import Any

import click

from coordd.cli.jobs import complete_jobs, complete_runs, seconds
from coordd.cli.options import EXIT_FAILED, EXIT_TIMED_OUT, JSON, JSONL, TABLE, Failed, Group, asked, json_line, say
from coordd.core.rows import STATES, SUCCESS, TERMINAL, UNKNOWN
from coordd.errors import RefusedError, UnavailableError

# A run is looked at soon at first, then less often: many take seconds, some take days.
POLL_FIRST_S = 0.1
POLL_LAST_S = 2.0

# What a run that is waited for may meet on the way, and get over: the ledger or the daemon is away for a while.
PASSING = frozenset(("unavailable", "try_later"))

# After so long without a word about a run that is waited for, somebody must look.
AWAY_S = 600.0


@click.group(cls=Group)
def run() -> None:
    """Runs: one occurrence of a job each."""


@run.command("list")
@click.option("--job", shell_complete=complete_jobs, help="Only runs of this job.")
@click.option("--state", type=click.Choice(STATES), help="Only runs in this state.")
@click.option("--limit", "-n", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many.")
def run_list(job: str | None, state: str | None, limit: int) -> None:
    """The latest runs of the cluster."""

    def draw(runs: Any) -> None:
        from coordd.cli import tables

        tables.draw(tables.RUNS, runs, "No such runs.")

    asked().show(asked().call("run.list", job=job, state=state, limit=limit), draw)


@run.command("show")
@click.argument("ident", metavar="ID", shell_complete=complete_runs)
def run_show(ident: str) -> None:
    """One run with its attempts."""

    def draw(shown: Any) -> None:
        from coordd.cli import tables

        tables.draw_run(shown)

    asked().show(asked().call("run.show", id=ident), draw)


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


@run.command("trigger")
@click.argument("job", shell_complete=complete_jobs)
@click.option("--arg", "args", metavar="K=V", multiple=True, callback=_arguments, help="Fills {K}; more than once.")
@click.option("--id", "ident", metavar="ID", help="Ask for the same run again without starting it twice.")
@click.option("--wait", is_flag=True, help="Wait for its end: exit 0 when it succeeded, else 1.")
@click.option("--timeout", metavar="DURATION", callback=seconds, help="With --wait: exit 124 after this (90s, 1h30m).")
@click.option("--dry-run", is_flag=True, help="Show what would be started; start nothing.")
@click.pass_context
def run_trigger(
    context: click.Context, job: str, args: dict[str, str], ident: str | None, wait: bool, timeout: float | None,
    dry_run: bool,
) -> None:  # fmt: skip
    """Run a job now, once. Prints the run's id."""
    if timeout is not None and not wait:
        raise click.UsageError("--timeout says how long to --wait: give both, or none")
    ask = asked()
    answer = ask.call("run.trigger", job=job, args=args or None, id=ident, dry_run=dry_run or None)
    if dry_run:
        ask.show(answer, lambda said: click.echo(shlex.join(said["argv"])))
        return
    recorded = {"ledger": "recorded in the ledger", "node": "kept by this node until the ledger answers again"}
    if not wait:
        ask.show(answer, lambda said: click.echo(said["id"]))
        if ask.output == TABLE:
            say(recorded.get(answer.get("durable"), "recorded"))
        return
    if ask.output == TABLE:
        click.echo(answer["id"])
    ended = _ended(answer["id"], answer.get("durable", ""), timeout)
    if ended is None:
        raise Failed(
            f"{answer['id']} has not ended after {timeout:g} s; it goes on", EXIT_TIMED_OUT,
            f"coordctl why '{answer['id']}'",
        )  # fmt: skip
    if ask.output != TABLE:
        ask.show({**ended, "durable": answer.get("durable")}, lambda _: None)
    if ended["state"] != SUCCESS:
        context.exit(EXIT_FAILED)


def _ended(ident: str, durable: str, timeout_s: float | None) -> dict[str, Any] | None:
    """Wait for a run's end, saying what happens; None when the time is over."""
    started = time.monotonic()
    pause_s, told, troubled = POLL_FIRST_S, "", ""
    heard_at = started
    while True:
        try:
            shown: dict[str, Any] = asked().call("run.show", id=ident)
            troubled, heard_at = "", time.monotonic()
        except (RefusedError, UnavailableError) as exc:
            # A trigger that only this node keeps is unknown to the ledger until it answers again.
            passing = PASSING | ({"unknown_run"} if durable == "node" else frozenset[str]())
            if (isinstance(exc, RefusedError) and exc.kind not in passing) or time.monotonic() - heard_at > AWAY_S:
                raise
            if str(exc) != troubled:
                troubled = str(exc)
                say(f"{ident}: waiting, although: {exc}")
            shown = {}
        if shown.get("state") in TERMINAL:
            say(_told(shown))
            return shown
        if shown and (now := _told(shown)) != told:
            say(told := now)
        if timeout_s is not None and time.monotonic() - started >= timeout_s:
            return None
        left_s = pause_s if timeout_s is None else started + timeout_s - time.monotonic()
        time.sleep(max(0.0, min(pause_s, left_s)))
        pause_s = min(POLL_LAST_S, pause_s * 1.3)


def _told(run: dict[str, Any]) -> str:
    from coordd.cli.phrases import duration, safe

    words = [f"{run['id']}: {run['state']}"]
    if run.get("node"):
        words.append(f"on {run['node']}")
    if run.get("attempt"):
        words.append(f"(attempt {run['attempt']})")
    if run.get("runtime_s") is not None and run["state"] in TERMINAL:
        words.append(f"after {duration(run['runtime_s'])}")
    text = " ".join(words)
    if run.get("reason") and run["state"] not in (SUCCESS, "received", "started", "pending"):
        text += f": {run['reason']}"
    if run["state"] == UNKNOWN:
        text += f"\n  hint: look at its output, then coordctl run resolve '{run['id']}' --as success|failed|relaunch"
    return "\n".join(safe(line) for line in text.split("\n"))


# ---- stop and settle


@run.command("cancel")
@click.argument("ident", metavar="ID", shell_complete=complete_runs)
def run_cancel(ident: str) -> None:
    """End an attempt that runs, on whichever node."""
    asked().show(asked().call("run.cancel", id=ident), lambda said: click.echo(f"{said['id']} is being cancelled"))


@run.command("revoke")
@click.argument("ident", metavar="ID", shell_complete=complete_runs)
def run_revoke(ident: str) -> None:
    """Forbid a run that has not started; it is remembered, also by nodes that are away."""
    asked().show(asked().call("run.revoke", id=ident), lambda said: click.echo(f"{said['id']} will not run"))


@run.command("resolve")
@click.argument("ident", metavar="ID", shell_complete=complete_runs)
@click.option("--as", "outcome", type=click.Choice(["success", "failed", "relaunch"]), required=True,
              help="What became of it, or: start it again.")  # fmt: skip
def run_resolve(ident: str, outcome: str) -> None:
    """Settle a run in the state unknown, after a look at what it left."""
    answer = asked().call("run.resolve", id=ident, **{"as": outcome})
    asked().show(answer, lambda said: click.echo(f"{said['id']} is {said.get('state') or outcome}"))


# ---- logs


@run.command("logs")
@click.argument("ident", metavar="ID", shell_complete=complete_runs)
@click.option("--follow", "-f", is_flag=True, help="Go on as it grows, until the run is over.")
@click.option("--attempt", type=click.IntRange(0), help="Which attempt [default: the last].")
@click.option("--bytes", "limit", type=click.IntRange(1), help="No more than the last so many.")
def run_logs(ident: str, follow: bool, attempt: int | None, limit: int | None) -> None:
    """What an attempt has written, as kept on the node that ran it."""
    ask = asked()
    if not follow:
        answer = ask.call("run.logs", id=ident, attempt=attempt, bytes=limit)
        ask.show(answer, lambda said: click.echo(said["text"], nl=False))
        return
    params = {"id": ident, "follow": True} | ({} if attempt is None else {"attempt": attempt})
    for part in ask.client.stream("run.logs", params):
        if "text" not in part:
            continue
        if ask.output in (JSON, JSONL):
            click.echo(json_line({"id": ident, "text": part["text"]}))
        else:
            click.echo(part["text"], nl=False)
