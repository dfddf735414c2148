"""`make demo`: three nodes on this machine, one launch each, a kill -9, a takeover. Nothing but Python and Java.

Everything it makes is in one temporary directory and in artifacts/demo; everything it starts has ended when it
ends. Exit code 0 only if every run ended in SUCCESS exactly once and no two attempts of a run were alive at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
NODES = ("n1", "n2", "n3")
LEASE_S, RENEW_S, LEDGER_TIMEOUT_S, KILL_GRACE_S = 8.0, 1.0, 1.0, 3.0

# Nothing here may wait for ever.
READY_LIMIT_S = 60.0
RUN_LIMIT_S = 240.0

# How long the pipeline's first transform takes its time, so that there is something to kill. Said to the viewer.
PAUSE_S = 3

console = Console(highlight=False)
STARTED = time.monotonic()


class DemoError(Exception):
    """The demo did not show what it promises."""


def say(text: str, style: str = "") -> None:
    console.print(f"[dim]{time.monotonic() - STARTED:6.1f} s[/dim]  {text}", style=style)


def wait_for(what: str, limit_s: float, look: Callable[[], Any]) -> Any:
    """Look until there is something; DemoError when the time is over."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise DemoError(f"{what}: not within {limit_s:.0f} s")


class Node:
    """One daemon of the demo."""

    def __init__(self, name: str, home: Path) -> None:
        self.name = name
        self.home = home
        self.socket = home / f"{name}.sock"
        self.config = home / f"{name}.toml"
        self.log = home / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.config.write_text(
            f"""\
[node]
name = "{name}"
state_dir = "{home}/{name}"
runtime_dir = "{home}/{name}/run"
jobs_dir = "{home}/jobs.d"
[cluster]
name = "demo"
bus = "unix://{home}/bus"
ledger = "sqlite:///{home}/ledger.db"
lease = {LEASE_S}
renew_interval = {RENEW_S}
ledger_timeout = {LEDGER_TIMEOUT_S}
kill_grace = {KILL_GRACE_S}
[spark]
master = "local[1]"
[control]
socket = "{self.socket}"
"""
        )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        env = {key: value for key, value in os.environ.items() if not key.startswith("COORDD_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [BIN / "coordd", "run", "--config", self.config],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
            )

    def ask(self, method: str, **params: Any) -> Any:
        """One request on the control socket; None when nobody answers."""
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(10)
                sock.connect(str(self.socket))
                sock.sendall(json.dumps({"id": 1, "method": method, "params": params}).encode() + b"\n")
                answer = json.loads(sock.makefile().readline())
        except (OSError, ValueError):
            return None
        if "error" in answer:
            raise DemoError(f"{self.name}: {method}: {answer['error']['message']}")
        return answer["result"]

    def stop(self) -> None:
        if self.process is not None and self.alive:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()


def write_jobs(home: Path, output: Path) -> tuple[str, datetime]:
    """The job files; returns the name of the scheduled job and its time."""
    jobs = home / "jobs.d"
    jobs.mkdir()
    for name, seconds in (("orders", 1), ("customers", 2), ("prices", 1)):
        (jobs / f"{name}.toml").write_text(
            f"""\
description = "pretends to load {name}"
overlap = "allow"
[params]
day = "today"
[command]
argv = ["/bin/sh", "-c", "echo loading {name} of $1; sleep {seconds}; echo done", "sh", "{{day}}"]
"""
        )
    at = datetime.fromtimestamp(int(time.time()) + 20, UTC)
    journals = ", ".join(f'"{home}/{name}/journal"' for name in NODES)
    (jobs / "history.toml").write_text(
        f"""\
description = "rebuilds the run history from the journals of all nodes, on Spark"
schedule = "at {at:%Y-%m-%dT%H:%M:%S}"
on_lost = "relaunch"
[spark]
application = "{ROOT}/coordd/history/job.py"
args = ["--journals", {journals}, "--output", "{output}", "--pause-s", "{PAUSE_S}"]
[spark.conf]
"spark.ui.enabled" = "false"
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"
"spark.driver.memory" = "512m"
"spark.sql.shuffle.partitions" = "2"
"""
    )
    return "history", at


def environ_of(pid: int) -> dict[bytes, bytes]:
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(pair.split(b"=", 1) for pair in pairs if b"=" in pair)


def processes_of(run: str, attempt: int) -> list[int]:
    """Everything alive that was started for an attempt, from the machine's own view: /proc, not coordd's word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            env = environ_of(int(entry.name))
            if env.get(b"COORDD_RUN") == run.encode() and env.get(b"COORDD_ATTEMPT") == str(attempt).encode():
                found.append(int(entry.name))
    return found


def family_of(node: Node, run: str, attempt: int) -> dict[str, list[int]]:
    """Daemon, runner and watcher, and the programs of an attempt on a node."""
    assert node.process is not None
    runners: set[int] = set()
    for facts in (node.home / node.name / "run" / "runs").glob("*/facts"):
        for line in facts.read_text().splitlines():
            with contextlib.suppress(ValueError):
                fact = json.loads(line)
                runners |= {fact[key] for key in ("pid", "watcher") if fact.get("fact") == "adopted" and fact.get(key)}
    return {"daemon": [node.process.pid], "runner": sorted(runners), "Spark": processes_of(run, attempt)}


def kill_family(family: dict[str, list[int]]) -> None:
    """SIGKILL to all at once: what a machine that loses power looks like to its peers."""
    for pids in family.values():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"


class Story:
    """Prints what changes in the ledger, as it changes, and watches for overlap."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.seen: dict[str, tuple[str, int]] = {}
        self.overlaps: list[str] = []

    def runs(self) -> list[dict[str, Any]]:
        for node in self.nodes:
            if node.alive:
                found = node.ask("run.list", limit=100)
                if found is not None:
                    return list(found)
        return []

    def look(self) -> list[dict[str, Any]]:
        runs = self.runs()
        for run in sorted(runs, key=lambda r: r["received_at"] or ""):
            now = (run["state"], run["attempt"])
            if self.seen.get(run["id"]) != now:
                self.seen[run["id"]] = now
                self.tell(run)
                if run["state"] == "started" and run["attempt"] > 0:
                    left = processes_of(run["id"], run["attempt"] - 1)
                    if left:
                        self.overlaps.append(f"{run['id']}: {left} of attempt {run['attempt'] - 1} still alive")
        return runs

    def tell(self, run: dict[str, Any]) -> None:
        node = (run["node"] or "nobody").split(".")[0]
        name = f"[bold]{run['id']}[/bold]"
        text = {
            "pending": f"{name} is asked for",
            "received": f"{name} granted to [cyan]{node}[/cyan], token {run['token']}, attempt {run['attempt']}",
            "started": f"{name} started on [cyan]{node}[/cyan], attempt {run['attempt']}",
            "success": f"{name} [green]succeeded[/green] on [cyan]{node}[/cyan] after {run['runtime_s']} s",
            "retry": f"{name} [yellow]attempt {run['attempt'] - 1} was lost[/yellow]: {run['reason']}",
        }.get(run["state"], f"{name} is {run['state']}: {run['reason']}")
        say(text)

    def until(self, what: str, limit_s: float, enough: Callable[[list[dict[str, Any]]], Any]) -> Any:
        return wait_for(what, limit_s, lambda: enough(self.look()))


def find(runs: list[dict[str, Any]], job: str) -> dict[str, Any] | None:
    return next((run for run in runs if run["job"] == job), None)


@contextlib.contextmanager
def cluster() -> Iterator[tuple[Path, list[Node]]]:
    """A home for three nodes; afterwards nothing of it runs."""
    home = Path(tempfile.mkdtemp(prefix="coordd-demo-", dir="/tmp"))
    nodes = [Node(name, home) for name in NODES]
    try:
        yield home, nodes
    finally:
        for node in nodes:
            node.stop()
        leftovers = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _belongs(pid, home)]
        for pid in leftovers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(home, ignore_errors=True)


def _belongs(pid: int, home: Path) -> bool:
    return pid != os.getpid() and environ_of(pid).get(b"COORDD_SOCKET", b"").startswith(str(home).encode())


def main() -> int:
    os.umask(0o022)  # a node refuses job files that its group may write, and some accounts make all of theirs so
    output = ROOT / "artifacts" / "demo"
    shutil.rmtree(output, ignore_errors=True)
    output.parent.mkdir(exist_ok=True)
    console.print(
        Panel(
            "Three coordd nodes on this machine, no broker and no Redis: a unix-socket bus and an SQLite ledger.\n"
            'They elect who launches each job. In mid-run the machine of the winner "loses power" (kill -9 of its\n'
            "daemon, its runner and its Spark); another node takes over. At no time are two attempts alive.",
            title="coordd demo",
            expand=False,
        )
    )
    try:
        with cluster() as (home, nodes):
            return play(home, nodes, output)
    except DemoError as exc:
        say(f"the demo failed: {exc}", "bold red")
        return 1


def sees(node: Node, count: int) -> bool:
    """Does a node see so many members, itself among them?"""
    return bool((node.ask("status") or {}).get("members", {}).get("alive") == count)


def play(home: Path, nodes: list[Node], output: Path) -> int:
    job, at = write_jobs(home, output)
    for node in nodes:
        node.start()
    for node in nodes:
        wait_for(f"{node.name} ready (see {node.log})", READY_LIMIT_S, partial(sees, node, len(nodes)))
    say(f"{len(nodes)} nodes are ready and see each other: {', '.join(node.name for node in nodes)}", "green")
    story = Story(nodes)

    say("six short jobs are triggered, two on each node; each may run anywhere, once")
    for number, name in enumerate(("orders", "customers", "prices", "orders", "prices", "customers")):
        nodes[number % len(nodes)].ask(
            "run.trigger", job=name, id=f"demo-{number + 1}", args={"day": f"day {number + 1}"}
        )
    say("the same id again, on another node, is the same run and starts nothing")
    nodes[1].ask("run.trigger", job="orders", id="demo-1", args={"day": "day 1"})
    story.until("the short jobs", 60, lambda runs: sum(run["state"] == "success" for run in runs) >= 6)

    say(f"[bold]{job}[/bold] is scheduled for {at:%H:%M:%S} UTC on all three nodes: a Spark job over their journals")
    first = story.until(
        "the pipeline's start",
        RUN_LIMIT_S,
        lambda runs: (run := find(runs, job)) and run["state"] == "started" and run["application_id"] and run,
    )
    owner = next(node for node in nodes if node.name == first["node"].split(".")[0])
    say(f"Spark says its application is {first['application_id']}")
    family = family_of(owner, first["id"], 0)
    shown = " · ".join(
        f"{what} {', '.join(f'{pid} ({name_of(pid)})' for pid in pids)}" for what, pids in family.items()
    )
    killed_at = time.monotonic()
    kill_family(family)
    say(f"kill -9 on [cyan]{owner.name}[/cyan]: {shown}", "bold red")

    again = story.until(
        "the takeover",
        RUN_LIMIT_S,
        lambda runs: (run := find(runs, job)) and run["state"] == "started" and run["attempt"] == 1 and run,
    )
    took_s = time.monotonic() - killed_at
    limit_s = LEASE_S + 2 * RENEW_S + 1
    say(
        f"[cyan]{again['node'].split('.')[0]}[/cyan] has taken over {took_s:.1f} s after the kill "
        f"(a lease of {LEASE_S:g} s; promised within {limit_s:g} s)",
        "green",
    )
    runs = story.until(
        "the pipeline's end", RUN_LIMIT_S, lambda runs: (r := find(runs, job)) and r["state"] == "success" and runs
    )
    return conclude(next(node for node in nodes if node.alive), again["id"], runs, story, output / "report.html")


def conclude(survivor: Node, run: str, runs: list[Any], story: Story, report: Path) -> int:
    """What has happened, as a user sees it, and whether it is what was promised."""
    console.print()
    show_runs(survivor)
    why = survivor.ask("why", id=run)
    console.print(f"[bold]$ coordctl why {run}[/bold]\n{why['why']}\n", markup=True)
    verdict = judge(runs, survivor, story)
    if not report.exists():
        raise DemoError(f"the pipeline left no {report}")
    console.print(verdict, style="bold green")
    console.print(f"the report: {report}")
    return 0


def show_runs(node: Node) -> None:
    """The run table, each attempt on a line."""
    table = Table(title="what happened")
    table.add_column("run", no_wrap=True)
    for name in ("try", "state", "node", "started", "seconds"):
        table.add_column(name)
    for run in sorted(node.ask("run.list", limit=100), key=lambda r: r["received_at"]):
        for attempt in node.ask("run.show", id=run["id"])["attempts"]:
            seconds = ""
            if attempt["started_at"] and attempt["ended_at"]:
                begun, ended = (datetime.fromisoformat(attempt[key]) for key in ("started_at", "ended_at"))
                seconds = f"{(ended - begun).total_seconds():.1f}"
            colour = {"success": "green", "lost": "yellow"}.get(attempt["state"], "red")
            table.add_row(
                run["id"],
                str(attempt["attempt"]),
                f"[{colour}]{attempt['state']}[/{colour}]",
                (attempt["node"] or "").split(".")[0],
                (attempt["started_at"] or "")[11:19],
                seconds,
            )
    console.print(table)


def judge(runs: list[dict[str, Any]], node: Node, story: Story) -> str:
    """Every run SUCCESS exactly once, and nothing overlapped."""
    for run in runs:
        attempts = node.ask("run.show", id=run["id"])["attempts"]
        succeeded = [attempt for attempt in attempts if attempt["state"] == "success"]
        if run["state"] != "success" or len(succeeded) != 1:
            raise DemoError(f"{run['id']} is {run['state']}, with {len(succeeded)} successful attempts")
    if story.overlaps:
        raise DemoError(f"two attempts were alive at once: {story.overlaps}")
    return f"{len(runs)} runs, each succeeded exactly once; no two attempts of a run were ever alive together"


if __name__ == "__main__":
    sys.exit(main())
