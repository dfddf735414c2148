"""coordctl: shows what the cluster does and why, and changes it."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any, NoReturn

import click

from coordd import __version__
from coordd.cli import options
from coordd.cli.alarms import alarm, deadletter, orphans
from coordd.cli.client import is_subscription, not_running
from coordd.cli.jobs import complete_jobs, complete_runs, drained, election, holding, instant, job, node, pool, seconds
from coordd.cli.ledger import ledger
from coordd.cli.nested.group import NestedTop
from coordd.cli.options import EXIT_FAILED, JSON, JSONL, TABLE, Failed, Finite, asked, say
from coordd.cli.plan import plan
from coordd.cli.revisions.commands import config
from coordd.cli.runs import run
from coordd.cli.triggers.commands import trigger
from coordd.cli.triggers.publish import message, publish
from coordd.cli.web.command import web
from coordd.cli.wire.command import wire
from coordd.core.visible import visible
from coordd.errors import CoorddError, RefusedError, UnavailableError

# `systemctl status` and init scripts (LSB) agree on these.
EXIT_NOT_RUNNING = 3
EXIT_STATE_UNKNOWN = 4

# `check-node` answers within this time (seconds), unless --timeout says otherwise.
CHECK_S = 10.0

# Events that only say that a node is alive.
HEARTBEATS = ("worker-heartbeat", "worker-beat")

EPILOG = """\b
Exit codes: 0 done; 1 failed; 2 usage; 65 bad job file; 69 daemon or ledger not reachable; 75 try later;
77 not permitted; 78 bad configuration; 124 timed out. `coordctl status`: 0 running, 3 not running.
`coordctl check-node`: 0 ok, 1 warning, 2 critical, 3 unknown, as monitoring plugins.
\b
Shell completion, in ~/.bashrc (zsh_source and fish_source for the others):
  eval "$(_COORDCTL_COMPLETE=bash_source coordctl)"
"""


@click.group(cls=NestedTop, top=True, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def program() -> None:
    """Query and control the coordd daemon of this machine, through its control socket.

    run, job, why and node list are about the cluster; status is about this node. Data goes to stdout, messages to
    stderr; --output json (one document) and jsonl (one object a line) are for programs.
    """


for group in (node, job, pool, run, election, ledger, alarm, deadletter, config, trigger, message):
    program.add_command(group)
program.add_command(orphans)
program.add_command(plan)
program.add_command(publish)
program.add_command(web)
program.add_command(wire)


@program.command("status")
def status() -> None:
    """This node: exit 0 when its daemon runs, 3 when it does not."""
    try:
        answer = asked().call("status")
    except UnavailableError as exc:
        raise Failed(str(exc), EXIT_NOT_RUNNING if not_running(exc) else EXIT_STATE_UNKNOWN) from exc
    from coordd.cli.show.brief import status_text

    asked().show(answer, lambda said: click.echo(status_text(said)))


@program.command("check-node")
@click.pass_context
def check_node(context: click.Context) -> None:
    """This node for a monitoring system: exit 0 ok, 1 warning, 2 critical, 3 unknown; performance data; --timeout [10].

    \b
    warning   drained, no jobs, late jobs, unknown or stuck runs, lost nodes, a weaker ledger, no bus
    critical  no answer, not ready, starts nothing, disk full, an alarm, the ledger or all other nodes away
    """
    from coordd.cli.show.verdict import CRITICAL, UNKNOWN, Verdict, judged

    ask = asked()
    limit_s = ask.timeout_s or CHECK_S
    began = time.monotonic()
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.setitimer(signal.ITIMER_REAL, limit_s)  # for everything together, whatever hangs
    try:
        status = ask.call("status")
        try:
            weaker = ask.call("ledger.status")["weaker"]
        except (UnavailableError, RefusedError) as exc:
            if time.monotonic() - began >= limit_s:
                raise TimeoutError from exc
            weaker = []  # status tells of a ledger that is away
        verdict = judged(status, weaker, time.monotonic() - began)
    except TimeoutError:
        verdict = Verdict(CRITICAL, f"no answer within {limit_s:g} s", {})
    except UnavailableError as exc:
        verdict = Verdict(CRITICAL, str(exc), {})
    except (CoorddError, KeyError, TypeError) as exc:
        verdict = Verdict(UNKNOWN, f"cannot tell: {exc!r}" if isinstance(exc, KeyError) else f"cannot tell: {exc}", {})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    ask.show(verdict.view(), lambda _: click.echo(verdict.line()))
    context.exit(verdict.code)


def _out_of_time(_number: int, _frame: object) -> NoReturn:
    raise TimeoutError


@program.command("ping")
def ping() -> None:
    """Does the daemon answer?"""
    asked().show(asked().call("ping"), lambda said: click.echo(f"coordd {said['version']} answers"))


@program.command("why")
@click.argument(
    "subject", metavar="ID|JOB|FILE", shell_complete=lambda *args: complete_jobs(*args) + complete_runs(*args)
)
@click.option("--what-if-without", "away", metavar="NODE", help="Also: what would be if that node were away.")
@click.pass_context
def why(context: click.Context, subject: str, away: str | None) -> None:
    """Why a run did or did not run, what keeps a job from its next run, or why a file (/PATH) has no run.

    Exit 1 if there is no such run or job; so for JOB@TIME at a time when the job was never due.
    """
    from coordd.cli.show.brief import wrapped

    def draw(said: Any) -> None:
        click.echo(wrapped(said["why"]))
        if said.get("what_if"):
            click.echo(wrapped(said["what_if"]))
        if said.get("timeline"):
            from coordd.cli.show import tables

            click.echo()
            tables.draw(tables.TIMELINE, said["timeline"], "")
        if said.get("unheard"):
            click.echo(f"The journals of these nodes could not be asked: {', '.join(said['unheard'])}.")

    answer = asked().call("why", id=subject, **({"without": away} if away else {}))
    asked().show(answer, draw)
    if not answer.get("found", True):  # an older daemon does not tell
        context.exit(EXIT_FAILED)


@program.command("doctor")
@click.pass_context
def doctor(context: click.Context) -> None:
    """Check this node for everything that could be wrong; exit 1 if something is."""
    checks = asked().call("doctor")

    def draw(found: Any) -> None:
        from coordd.cli.show import tables

        tables.draw(tables.CHECKS, found, "Nothing was checked.")

    asked().show(checks, draw)
    if any(check.get("state") == "fail" for check in checks):
        context.exit(EXIT_FAILED)


@program.command("reload")
@click.option("--drain", is_flag=True, help="First take no new runs, and wait until those of this node have ended.")
@click.option("--timeout", metavar="DURATION", callback=seconds, help="With --drain: exit 124 after waiting this long.")
@click.option("--no-jobs", is_flag=True, help="Although no job file is left: all jobs of this node go.")
def reload(drain: bool, timeout: float | None, no_jobs: bool) -> None:
    """Read configuration and job files again.

    Refused for a wrong configuration or a wrong file of a job that is loaded: then nothing changes. A wrong new file
    only disables its own job. Refused too where no job file is left, unless --no-jobs says that this is meant.
    """
    if timeout is not None and not drain:
        raise click.UsageError("--timeout says how long to wait for --drain: give both, or none")
    if not drain or asked().call("status").get("drained"):  # a drain of somebody else stays
        if drain:
            drained({"node": "this node"}, timeout)
        _reload(no_jobs)
        return
    answer = asked().call("node.drain", note="reload --drain")
    try:
        drained(answer, timeout)
        _reload(no_jobs)
    finally:
        hold = asked().call("status").get("drained") or {}
        if hold and (hold.get("note"), hold.get("by")) != (answer.get("note"), answer.get("by")):
            say(f"this node stays drained: {hold.get('by')} has drained it meanwhile ({hold.get('note') or 'no note'})")
        else:
            asked().call("node.resume")


def _reload(no_jobs: bool) -> None:

    def draw(said: Any) -> None:
        changes = [f"{word}: {', '.join(said[word])}" for word in ("added", "removed", "changed") if said.get(word)]
        click.echo(f"reloaded, {said.get('jobs', 0)} jobs; " + ("; ".join(changes) or "nothing has changed"))
        if said.get("disabled"):
            say(f"disabled, because their files are wrong: {', '.join(said['disabled'])} (coordctl job list)")
        if said.get("regrouped"):
            say(
                f"expand was changed while {', '.join(said['regrouped'])} ran: when a group ends is judged by the"
                " members that it would have now; take the old expand back until it has ended, or start its children"
                " yourself"
            )
        if said.get("needs_restart"):
            say(f"needs a restart of the daemon: {', '.join(said['needs_restart'])}")

    asked().show(asked().call("reload", no_jobs=no_jobs or None), draw)


@program.command("call")
@click.argument("method")
@click.argument("params", metavar="[JSON|-]", default="{}")
def call(method: str, params: str) -> None:
    """Call any METHOD of the control socket with a JSON object of parameters; a stream is printed line by line."""
    text = sys.stdin.read() if params == "-" else params
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise click.BadParameter(f"expected a JSON object, found {text[:60]!r}: {exc}") from exc
    if not isinstance(given, dict):
        raise click.BadParameter(f"expected a JSON object, found {text[:60]!r}")
    ask = asked()
    try:
        answer = ask.client.call(method, given)
    except ValueError as exc:  # Python accepts NaN and Infinity, JSON does not.
        raise click.BadParameter(f"expected JSON: {exc}") from exc
    if is_subscription(answer):
        for item in ask.client.messages(answer["subscription"]):
            click.echo(options.json_line(item))
        return
    ask.show(answer, lambda said: click.echo(options.json_document(said)))


# ---- the audit


@program.command("audit")
@click.option("--since", metavar="T", callback=instant, help="From this instant (UTC), or this long ago: 2h, 7d.")
@click.option("--limit", "-n", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="How many.")
@click.pass_context
def audit(context: click.Context, since: float | None, limit: int) -> None:
    """Privileged calls to this node, done and refused; exit 1 when their chain is broken."""
    answer = asked().call("audit", since=since, limit=limit)

    def draw(said: Any) -> None:
        from coordd.cli.show import tables

        tables.draw(tables.AUDIT, said["records"], "There are no such records.")

    asked().show(answer["records"] if asked().output == JSONL else answer, draw)
    for broken in answer["chain"]["breaks"]:
        place = f"{broken['file']}:{broken['line']}" if broken["line"] else broken["file"]
        say(f"coordctl: the chain is broken: {place}: {broken['problem']}")
    if not answer["chain"]["intact"]:
        context.exit(EXIT_FAILED)


# ---- events


@program.command("events")
@click.option("--follow", "-f", is_flag=True, help="Keep printing new events.")
@click.option(
    "--type",
    "types",
    metavar="TYPE",
    multiple=True,
    help="Only events of this type (task-started, …); may be repeated.",
)
@click.option("--heartbeats", is_flag=True, help="Show heartbeats too.")
@click.option("--limit", "-n", type=click.IntRange(0, 2000), help="How many past events [default: 100, with -f 10].")
def events(follow: bool, types: tuple[str, ...], heartbeats: bool, limit: int | None) -> None:
    """The events that nodes send to each other, as this node hears them; heartbeats only on request.

    With -f, json is one object a line, as jsonl.
    """
    from coordd.cli.show.brief import event_text

    ask = asked()
    params: dict[str, Any] = {"backlog": (10 if follow else 100) if limit is None else limit, "follow": follow}
    if types:
        params["types"] = list(types)
    elif not heartbeats:
        params["without"] = list(HEARTBEATS)
    document: list[Any] | None = [] if ask.output == JSON and not follow else None
    for item in _subscribed(params, follow):
        if "event" in item and document is not None:
            document.append(item["event"])
        elif "event" in item:
            ask.item(item["event"], event_text(item["event"]))
        elif "lost" in item:
            say(f"{item['lost']} events were lost: this reader is too slow")
    if document is not None:
        ask.show(document, lambda _: None)


def _subscribed(params: dict[str, Any], follow: bool) -> Any:
    for item in asked().client.stream("events.subscribe", params):
        if "alive" in item and not follow:
            return
        yield item


@program.command("watch")
@click.option(
    "--interval", "-n", type=Finite(0.1, 3600), default=1.0, show_default=True, help="Seconds between two refreshes."
)
def watch(interval: float) -> None:
    """Nodes, active runs and recent events, refreshed all the time; q or Ctrl-C ends it."""
    from coordd.cli.show.watch import once, watch_terminal

    if asked().output != TABLE:
        raise click.UsageError("watch is for people; for programs: coordctl events -f --output jsonl")
    if sys.stdin.isatty() and sys.stdout.isatty():
        watch_terminal(asked().socket, interval)
    else:
        once(asked().client)


# ---- the checks


@program.group("check")
def check() -> None:
    """Checks of nodes and of what jobs need: healthy, degraded, unhealthy, insecure, unavailable or unknown."""


@check.command("list")
def check_list() -> None:
    """The checks of the cluster: those of every node that answers, and those that nodes share."""

    def draw(found: Any) -> None:
        from coordd.cli.show import tables

        tables.draw(tables.CHECKED, found, "There are no checks.")

    asked().show(asked().call("check.list"), draw)


@check.command("show")
@click.argument("name")
def check_show(name: str) -> None:
    """One check on this node: its rule, how it stands, which jobs it is for."""

    def draw(found: Any) -> None:
        for key, value in found.items():
            if value not in (None, "", {}):
                shown = value if isinstance(value, (str, int, float)) else json.dumps(value, ensure_ascii=False)
                click.echo(visible(f"{key}: {shown}"))

    asked().show(asked().call("check.show", name=name), draw)


@check.command("run")
@click.argument("name")
def check_run(name: str) -> None:
    """Look once, now, on this node: the result counts as any other. Exit code 1 unless it is healthy."""
    found = asked().call("check.run", name=name)

    def draw(found: Any) -> None:
        click.echo(visible(f"{found['name']}: {found['seen']}" + (f": {found['output']}" if found["output"] else "")))

    asked().show(found, draw)
    if found["seen"] != "healthy":
        raise click.exceptions.Exit(1)


@check.command("report")
@click.argument("name")
@click.argument("state", metavar="healthy|degraded|unhealthy|insecure|unavailable")
@holding
def check_report(name: str, state: str, until: float | None, note: str | None) -> None:
    """Report a state, as an alert of a monitoring system does: it counts beside what the check itself finds, until
    then, or until `healthy` is reported.
    """
    asked().show(
        asked().call("check.report", name=name, state=state, until=until, note=note),
        lambda said: click.echo(f"{said['name']}: {said['reported']} is reported"),
    )


# ---- the breakers


@program.group("breaker")
def breaker() -> None:
    """Circuit breakers: what fails again and again is left alone for a while: a job, the bus, the ledger, a service."""


@breaker.command("list")
def breaker_list() -> None:
    """The breakers of this node's connections and services and of the cluster's jobs, and why they opened."""

    def draw(found: Any) -> None:
        from coordd.cli.show import tables

        tables.draw(tables.BREAKERS, found, "There are no breakers.")

    asked().show(asked().call("breaker.list"), draw)


@breaker.command("reset")
@click.argument("name")
def breaker_reset(name: str) -> None:
    """Close a breaker, of a job also one that is isolated: what it guards works again."""
    asked().show(asked().call("breaker.reset", name=name), lambda said: click.echo(f"{said['name']}: {said['state']}"))


@breaker.command("isolate")
@click.argument("name", metavar="job:NAME")
@holding
def breaker_isolate(name: str, until: float | None, note: str | None) -> None:
    """Hold a job's breaker open by hand: its runs are rejected until then, or until `breaker reset`."""

    def draw(said: Any) -> None:
        from coordd.cli.show.phrases import held

        told = held(said.get("isolated") or {})
        click.echo(f"{said['name']} is isolated {told}".rstrip())

    asked().show(asked().call("breaker.isolate", name=name, until=until, note=note), draw)


def main() -> NoReturn:
    """The program."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # like every other filter: `coordctl run list | head`
    options.main(program, "coordctl")
