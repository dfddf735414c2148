"""Tables and panels, drawn with rich. Imported only on demand, because rich takes long to load."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from coordd.cli.show import narrow
from coordd.cli.show.phrases import (
    advanced,
    child,
    committed,
    duration,
    held,
    instant,
    moment,
    percent,
    plain,
    rounded,
    rules_text,
    size,
    tail_of,
)
from coordd.core.ledger.words import RESOLVED

# A table for a program need not fit into a terminal.
WIDTH_UNLIMITED = 4096

# What the border of a panel takes of the width.
PANEL = 4

# The characters of a bar.
BAR_WIDTH = 10

# The colours of states of runs, nodes, checks and connections; other states have no colour.
STYLES = {
    "success": "green", "alive": "green", "ready": "green", "ok": "green", "connected": "green", "closed": "green",
    "in force": "green", "waiting": "yellow",
    "enabled": "green", "released": "green", "done": "green", "refused": "bold red",
    "started": "bold cyan", "received": "cyan", "pending": "blue", "retry": "yellow",
    "suspect": "yellow", "warn": "yellow", "starting": "yellow", "mingling": "yellow", "draining": "yellow",
    "suspended": "yellow", "held": "yellow", "launched": "green", "skipped": "yellow",
    "limited": "yellow", "late": "yellow", "missed": "yellow", "rejected": "yellow", "revoked": "magenta",
    "failure": "bold red", "fail": "bold red", "lost": "bold red", "unknown": "bold red reverse",
    "open": "bold red", "half-open": "yellow", "recovering": "yellow",
    "disabled": "red", "disconnected": "red", "unavailable": "bold red", "left": "dim", "stopping": "dim",
}  # fmt: skip


class Column(NamedTuple):
    """A heading, and how to get its cell from a row."""

    title: str
    cell: Callable[[Mapping[str, Any], float], str | Text]
    right: bool = False
    whole: bool = False  # not wrapped, unless it alone is wider than the terminal: people copy it
    spare: int = 0  # where the terminal is too narrow, the column with the highest number is left out first; 0: never


def colour_wanted() -> bool:
    """True for a person at a terminal who has not set NO_COLOR."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def console() -> Console:
    """The console: as wide as the terminal, or as the table if there is no terminal."""
    tty = sys.stdout.isatty()
    return Console(
        force_terminal=tty,
        color_system="auto" if colour_wanted() else None,
        markup=False,
        highlight=False,
        emoji=False,
        width=None if tty else WIDTH_UNLIMITED,
    )


def stated(state: str) -> Text:
    """A state in its colour."""
    return Text(plain(state), style=STYLES.get(state, ""))


def table(
    columns: Sequence[Column],
    rows: Iterable[Mapping[str, Any]],
    *,
    now: float,
    title: str = "",
    width: int | None = None,
    blocks: bool = False,
) -> RenderableType:
    """A table with one line per row. On a narrow terminal it lacks columns.

    ``width``: of the place for it, if that is not the whole terminal. ``blocks``: where not even the needed columns
    fit, each row is a block of its own, with a line for each cell.
    """
    boxed = sys.stdout.isatty()  # such a box has a space between two columns
    drawn = Table(
        box=box.SIMPLE_HEAD if boxed else None,
        show_edge=False,
        header_style="bold",
        pad_edge=False,
        padding=(0, narrow.GAP - boxed, 0, 0),
        title=title or None,
        title_justify="left",
    )
    lines = [[column.cell(row, now) for column in columns] for row in rows]
    kept, fits = narrow.kept(columns, [[str(cell) for cell in line] for line in lines], width or console().width)
    if blocks and not fits:
        parts: list[RenderableType] = []
        for line in lines:
            parts += [Text(), facts(zip([column.title for column in columns], line, strict=True))]
        return Group(*parts[1:])
    for column in (columns[place] for place in kept):
        whole = column.whole and fits
        drawn.add_column(column.title, justify="right" if column.right else "left", no_wrap=whole, overflow="fold")
    for line in lines:
        drawn.add_row(*[line[place] for place in kept])
    return drawn


def draw(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], nothing: str) -> None:
    """Print a table; without rows, print the sentence for that case."""
    if not rows:
        print(nothing, file=sys.stderr)
        return
    show(table(columns, rows, now=time.time(), blocks=True))


def show(drawn: RenderableType) -> None:
    """Print it; for a program, without the padding at the ends of lines."""
    to = console()
    if to.is_terminal:
        to.print(drawn)
        return
    with to.capture() as capture:
        to.print(drawn)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


# ---- cells


def text(key: str) -> Callable[[Mapping[str, Any], float], str]:
    return lambda row, _now: plain(row.get(key))


def state(key: str = "state") -> Callable[[Mapping[str, Any], float], Text]:
    return lambda row, _now: stated(str(row.get(key) or ""))


def when(key: str) -> Callable[[Mapping[str, Any], float], str]:
    return lambda row, now: moment(instant(row.get(key)), now)


def _last_seen(row: Mapping[str, Any], _now: float) -> str:
    return "this node" if row.get("self") else f"{duration(row.get('last_seen_s'))} ago"


def _job_state(row: Mapping[str, Any], _now: float) -> Text:
    if not row.get("enabled", True):
        return stated("disabled" if row.get("problems") else "held")
    if row.get("suspended"):
        return stated("suspended")
    if row.get("late"):
        return stated("late")
    return stated("warn" if row.get("problems") else "enabled")


def _runtime(row: Mapping[str, Any], now: float) -> str:
    started, ended = instant(row.get("started_at")), instant(row.get("ended_at"))
    if row.get("runtime_s") is not None:
        return duration(row["runtime_s"])
    resolved = row.get("exit_code") is None and str(row.get("reason") or "").startswith(RESOLVED)
    if started is None or resolved or row.get("state") == "unknown":
        return ""  # nobody knows when its program ended
    return duration(ended - started) if ended else f"{duration(max(0.0, now - started))} …"


def host(full_hostname: Any) -> str:
    """edge-1 of edge-1.4711: a node's name without its pid, which changes with each restart."""
    name, _, pid = plain(full_hostname).rpartition(".")
    return name if pid.isdecimal() else plain(full_hostname)


def _host_and_pid(full_hostname: Any) -> str:
    name = host(full_hostname)
    pid = plain(full_hostname)[len(name) + 1 :]
    return f"{name} (pid {pid})" if pid else name


def _succession(row: Mapping[str, Any], _now: float) -> str:
    return " > ".join(host(name) for name in row.get("succession") or ()) or "nobody"


def _statements(row: Mapping[str, Any], _now: float) -> str:
    return "; ".join(f"{host(name)} {plain(said)}" for name, said in (row.get("statements") or {}).items())


def _says(row: Mapping[str, Any], _now: float) -> Text:
    said = stated(str(row.get("says") or ""))
    if row.get("drained"):
        told = held(row["drained"])
        said.append(
            f" {told}" if said.plain == "draining" and told else "" if said.plain == "draining" else " (drained)"
        )
    if row.get("failing"):
        said.append(", runs fail here", style="yellow")
    return said.append(", isolated: hears nobody", style="bold red") if row.get("isolated") else said


NODES = (
    Column("NODE", text("hostname"), whole=True),
    Column("STATE", state(), whole=True),
    Column("SAYS", _says),
    Column("LAST SEEN", _last_seen, right=True, spare=1),
    Column("RUNS", text("active"), right=True),
    Column("PID", text("pid"), right=True, spare=5),
    Column("CLOCK", text("clock"), right=True, spare=6),
    Column("TAGS", text("tags"), spare=3),
    Column("JOBS DIGEST", lambda row, _now: plain(row.get("jobs_digest"))[:8], spare=2),
    Column("VERSION", text("version"), spare=4),
)

JOBS = (
    Column("JOB", text("name"), whole=True),
    Column("STATE", _job_state, whole=True),
    Column("SCHEDULE", lambda row, _now: _schedule(row), spare=2),
    Column("ZONE", text("timezone"), spare=4),
    Column("NEXT (UTC)", when("next"), spare=1),
    Column("LAST SUCCESS", when("last_success_at"), spare=3),
    Column("ON LOST", text("on_lost"), spare=6),
    Column("STARTS", lambda row, _now: plain(row.get("starts")), spare=5),
    Column("PROBLEMS", lambda row, _now: _problems(row)),
)


def _to(row: Mapping[str, Any]) -> str:
    """The end of a span of fire times."""
    return f" to {plain(row['to'])}" if row.get("to") else ""


def _schedule(row: Mapping[str, Any]) -> str:
    """When it runs: its schedule, or what else starts it; nothing for a file that is wrong."""
    return plain(row.get("schedule") or row.get("started_by")) or ("by hand" if row.get("enabled", True) else "")


def _problems(row: Mapping[str, Any]) -> str:
    """A job's suspension, and its problems."""
    stopped = row.get("suspended") or {}
    told = f"{'all jobs suspended' if stopped.get('all') else 'suspended'} {held(stopped)}" if stopped else ""
    return "; ".join(part for part in (told if held(stopped) else "", plain(row.get("problems"))) if part)


def node(row: Mapping[str, Any], _now: float) -> str:
    """A node's name only; its pid at the time does not help people."""
    return host(row.get("node"))


DECISIONS = (
    Column("FIRE TIME (UTC)", lambda row, _now: plain(row["fire_time"]) + _to(row)),
    Column("COUNT", text("count"), right=True, spare=2),
    Column("DECISION", lambda row, _now: stated(row.get("decision") or "-")),
    Column("RUN", text("run"), whole=True, spare=1),
    Column("REASON", text("reason")),
)

TIMELINE = (
    Column("AT (UTC)", lambda row, _now: rounded(plain(row.get("at")), 3), whole=True),
    Column("NODE", lambda row, _now: host(row.get("node"))),
    Column("WHAT", lambda row, _now: stated(str(row.get("what") or ""))),
    Column("DETAIL", text("detail")),
)

TRIGGERS = (
    Column("JOB", text("job"), whole=True),
    Column("TRIGGER", text("name"), whole=True),
    Column("KIND", text("kind"), spare=3),
    Column("STATE", text("state")),
    Column("NODE", text("poller"), spare=2),
    Column("TAKEN", text("taken"), right=True, spare=4),
    Column("WAITING", text("waiting"), right=True),
    Column("DEAD", lambda row, _now: str(row.get("dead") or ""), right=True),
    Column("WAITS FOR", text("about"), spare=1),
    Column("PROBLEM", text("problem")),
)

REVISIONS = (
    Column("REVISION", text("number"), right=True),
    Column("STATE", lambda row, _now: stated(str(row.get("state") or ""))),
    Column("PUBLISHED (UTC)", text("at"), whole=True),
    Column("BY", text("by"), spare=2),
    Column("JOBS", text("jobs"), right=True, spare=3),
    Column("NOTE", text("note"), spare=1),
    Column("WAITS FOR", lambda row, _now: plain("; ".join(row.get("waits") or []))),
)

PLAN = (
    Column("JOB", text("job"), whole=True),
    Column("CHANGE", text("change"), whole=True),
    Column("COME", text("added"), right=True),
    Column("GO", text("removed"), right=True),
    Column("MOVE", text("moved"), right=True),
    Column("LAUNCHED AT ONCE", text("now")),
)

IMPORTED = (
    Column("LINE", text("line"), right=True),
    Column("JOB", text("job"), whole=True),
    Column("STATE", state(), whole=True),
    Column("FILE", text("done"), whole=True),
    Column("SCHEDULE", text("schedule"), whole=True),
    Column("CRONTAB", text("text")),
)


def bar(progress: Mapping[str, Any] | None) -> str:
    """How far a Spark run is, as a bar and in words; "" if that is not known."""
    if not progress:
        return ""
    full = percent(progress) * BAR_WIDTH // 100
    return f"{'█' * full}{'░' * (BAR_WIDTH - full)} {advanced(progress)}"


RUNS = (
    Column("RUN", text("id"), whole=True),
    Column("STATE", state(), whole=True),
    Column("TRY", text("attempt"), right=True, whole=True, spare=5),
    Column("NODE", node, spare=1),
    Column("STARTED (UTC)", when("started_at"), spare=3),
    Column("RUNTIME", _runtime, right=True, spare=2),
    Column("EXIT", text("exit_code"), right=True, spare=4),
    Column("REASON", text("reason")),
)

WATCHED = (*RUNS[:6], Column("PROGRESS", lambda row, _now: bar(row.get("progress"))), *RUNS[6:])

ATTEMPTS = (
    Column("TRY", text("attempt"), right=True, whole=True),
    Column("STATE", state(), whole=True),
    Column("NODE", lambda row, _now: _host_and_pid(row.get("node"))),
    Column("RECEIVED (UTC)", when("received_at"), spare=2),
    Column("STARTED (UTC)", when("started_at")),
    Column("RUNTIME", _runtime, right=True),
    Column("EXIT", text("exit_code"), right=True),
    Column("TOKEN", text("token"), right=True, spare=3),
    Column("APPLICATION", text("application_id"), spare=1),
    Column("REASON", text("reason")),
)

ELECTIONS = (
    Column("ELECTION", text("id"), whole=True),
    Column("TOPIC", text("topic"), spare=3),
    Column("OPENED BY", lambda row, _now: host(row.get("opened_by")), spare=2),
    Column("SUCCESSION", lambda row, now: _succession(row, now) if row.get("decided") else "open"),
    Column(
        "TOOK",
        lambda row, _now: duration((row.get("duration_ms") or 0) / 1000) if row.get("decided") else "",
        right=True,
        spare=4,
    ),
    Column("STATEMENTS", _statements, spare=1),
)

CHECKED = (
    Column("CHECK", text("name"), whole=True),
    Column("NODE", text("node")),
    Column("SCOPE", text("scope"), spare=2),
    Column("STATE", state(), whole=True),
    Column("SINCE (UTC)", when("since"), spare=1),
    Column("SAW", text("output")),
)

BREAKERS = (
    Column("BREAKER", text("name"), whole=True),
    Column("STATE", state(), whole=True),
    Column("FAILURES", text("failures"), right=True, spare=3),
    Column("OPENED", text("opened"), right=True, spare=2),
    Column("NEXT TRY (UTC)", when("next_probe_at"), spare=1),
    Column("WHY", text("reason")),
)

ALARMS = (Column("AT (UTC)", when("at")), Column("ID", text("id"), whole=True), Column("WHAT", text("text")))

LETTERS = (
    Column("ID", text("id"), whole=True),
    Column("KIND", text("kind"), spare=3),
    Column("ENDED (UTC)", when("at"), spare=1),
    Column("STATE", state(), whole=True),
    Column("ATTEMPTS", text("attempts"), right=True, spare=4),
    Column("NODE", node, spare=2),
    Column("REASON", text("reason")),
)

AUDIT = (
    Column("NO", text("n"), right=True, whole=True, spare=2),
    Column("AT (UTC)", when("at"), spare=1),
    Column("WHO", lambda row, _now: f"{plain(row.get('by'))} ({plain(row.get('uid'))})"),
    Column("PID", text("pid"), right=True, spare=5),
    Column("REQUEST", text("request"), spare=4),
    Column("METHOD", text("method"), whole=True),
    Column("ABOUT", text("subject")),
    Column("OUTCOME", state("outcome"), whole=True),
    Column("TIMES", text("count"), right=True, spare=3),
    Column("REASON", text("reason")),
)

CHECKS = (
    Column("STATE", state(), whole=True),
    Column("CHECK", text("check")),
    Column("FOUND", text("text")),
    Column("ADVICE", text("advice")),
)


# ---- panels


def facts(pairs: Iterable[tuple[str, str | Text]]) -> Table:
    """Names and values in two columns without borders; empty values are left out."""
    drawn = Table(box=None, show_header=False, pad_edge=False)
    drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in pairs:
        if str(value):
            drawn.add_row(name, value)
    return drawn


def panel(title: Text, *inside: RenderableType) -> Panel:
    """A box around one thing."""
    return Panel(Group(*inside), title=title, title_align="left", expand=False, box=box.ROUNDED, padding=(0, 1))


def draw_run(run: Mapping[str, Any]) -> None:
    """One run with its attempts."""
    now = time.time()

    def at(key: str) -> str:
        return moment(instant(run.get(key)), now)

    about = facts(
        (
            ("job", plain(run.get("job"))),
            ("fire time", at("fire_time")),
            ("requested by", plain(run.get("by"))),
            ("args", plain(run.get("args"))),
            ("node", _host_and_pid(run.get("node"))),
            ("attempt", plain(run.get("attempt"))),
            ("token", plain(run.get("token"))),
            ("committed", committed(run)),
            ("application", plain(run.get("application_id"))),
            ("received", at("received_at")),
            ("started", at("started_at")),
            ("ended", at("ended_at")),
            ("runtime", _runtime(run, now)),
            ("progress", bar(run.get("progress")) or plain(run.get("no_progress"))),
            ("Spark's UI", plain((run.get("progress") or {}).get("ui"))),
            ("exit code", plain(run.get("exit_code"))),
            ("reason", plain(run.get("reason"))),
            ("group", plain(run.get("group"))),
            ("members", plain((run.get("members") or {}).get("total"))),
            ("parents", ", ".join(map(plain, run.get("parents") or ()))),
            ("runs once more for", plain(run.get("rerun_of") or "")),
            ("children", ", ".join(child(of) for of in run.get("children") or ())),
        )
    )
    title = Text.assemble((plain(run.get("id")), "bold"), " ", stated(str(run.get("state"))))
    inside: list[RenderableType] = [about]
    if run.get("attempts"):
        inside += [Text(), table(ATTEMPTS, run["attempts"], now=now, width=console().width - PANEL)]
    if run.get("log_tail"):
        inside += [Text(), Text(tail_of(run.get("log_tail_of")), style="dim")]
        inside += [Text(plain(line)) for line in run["log_tail"]]
    show(panel(title, *inside))


def draw_ledger(about: Mapping[str, Any]) -> None:
    """The ledger: where it is, how its server is, what it holds."""
    kept = about.get("persistence") or {}
    disk = [word for key, word in (("aof", "append-only file"), ("rdb", "snapshots")) if kept.get(key)]
    memory = size(about.get("used_memory_bytes"))
    if about.get("maxmemory_bytes"):
        memory += f" of {size(about['maxmemory_bytes'])}"
    left_s = about.get("recovering_s")
    pairs: tuple[tuple[str, str | Text], ...] = (
        ("url", plain(about.get("url"))),
        ("state", stated(str(about.get("state")))),
        ("error", plain(about.get("error"))),
        ("recovering", f"for {duration(left_s)}: no new launches" if left_s else ""),
        ("cluster", plain(about.get("cluster"))),
        ("identity", plain(about.get("identity"))),
        ("continues", plain(about.get("predecessor"))),
        ("closed", plain(about.get("closed"))),
        ("this node's pin", plain(about.get("pin"))),
        ("not used here", plain(about.get("not_used"))),
        ("others", plain([_other(node) for node in about.get("nodes") or () if not node.get("agrees")])),
        ("rules", rules_text(about.get("rules") or {})),
        ("epoch", plain(about.get("epoch"))),
        ("since", moment(about.get("since"), time.time())),
        ("schema", plain(about.get("schema"))),
        ("file", size(about.get("size_bytes"))),
        ("server", plain(about.get("version"))),
        ("role", plain(about.get("role"))),
        ("replicas", plain(about.get("replicas"))),
        ("eviction", plain(about.get("maxmemory_policy"))),
        ("persistence", plain(disk) or ("none" if kept else "")),
        ("memory", memory),
        ("answers in", f"{about['ping_ms']} ms" if about.get("ping_ms") is not None else ""),
        ("jobs", plain(about.get("jobs"))),
        ("runs", plain(about.get("runs"))),
    )
    weaker = [Text(f"weaker than advised: {plain(sentence)}", style="yellow") for sentence in about.get("weaker") or ()]
    show(panel(Text("ledger", style="bold"), facts(pairs), *weaker))


def _other(node: Mapping[str, Any]) -> str:
    return f"{node.get('node')} uses {node.get('identity')}" + ("" if node.get("pinned") else " (never used)")


def draw_facts(about: Mapping[str, Any], title: str) -> None:
    """One object, key by key, in a box."""
    now = time.time()

    def shown(key: str, value: Any) -> str | Text:
        if key == "state":
            return stated(str(value))
        if key in ("next", "fire_time"):
            return moment(instant(value), now)
        if key.endswith("_s") and isinstance(value, (int, float)):
            return duration(value)
        if isinstance(value, Mapping) and key != "params":  # the default of a parameter may be empty
            value = {name: item for name, item in value.items() if item not in (None, "", [], {})}
        return size(value) if key.endswith("_bytes") else plain(value)

    pairs = [
        (key.removesuffix("_s").removesuffix("_bytes").replace("_", " "), shown(key, value))
        for key, value in about.items()
    ]
    show(panel(Text(plain(title), style="bold"), facts(pairs)))
