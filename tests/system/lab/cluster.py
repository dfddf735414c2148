"""A real cluster for tests: real daemons start real programs. Tests judge by the lines that the programs wrote."""

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
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from support.fake_daemon import CTL

from system.lab.backends import BACKENDS, Backend, Embedded, Production
from system.lab.processes import LIMIT_S, LOOK_S, PROGRAM, ROOT, kill_at_once, processes, until

# The brake for first starts releases a node after a few heartbeats. A node without its bus waits ten seconds.
BRAKE_S = 15.0


class Entry(NamedTuple):
    """One line that a program wrote. ``at`` is on CLOCK_BOOTTIME, ``wall`` is in Unix seconds."""

    run: str
    attempt: int
    token: int
    node: str
    word: str  # start | end | overlap
    at: float
    wall: float
    pid: int


class CallError(Exception):
    """The daemon answered a control call with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error.get("message", ""))
        self.kind = error.get("data", {}).get("kind", "")


def fire_time(run: str) -> float:
    """The nominal time that a scheduled run's id names, in Unix seconds; 0.0 for a triggered run."""
    text = run.partition("@")[2]
    return datetime.fromisoformat(text).timestamp() if text else 0.0


class Node:
    """One daemon, and everything that it starts."""

    def __init__(self, cluster: Cluster, name: str, *, place: str = "") -> None:
        """``place``: the base name of the node's files; by default the name of the node."""
        self.cluster = cluster
        self.name = name
        base = cluster.path / (place or name)
        self.state_dir = base
        self.runtime_dir = Path(f"{base}.run")
        self.config_path = Path(f"{base}.toml")
        self.socket = Path(f"{base}.sock")
        self.log_path = Path(f"{base}.log")
        self.settings = ""  # more sections of its configuration
        self.changes: dict[str, Any] = {}  # keys of [cluster] that differ from the other nodes; None: no such key
        self.env: dict[str, str] = {}
        self.root = ROOT  # the directory of the package that it runs
        self.budget = cluster.budget
        self.patience_s = LIMIT_S  # how long a control call waits for its answer
        self.process: subprocess.Popen[bytes] | None = None

    def write_config(self, **changes: Any) -> None:
        """Write the configuration file. ``changes`` are keys of [cluster]; None leaves a key out."""
        cluster = {**self.cluster.backend.settings(), **self.cluster.timing, **self.changes, **changes}
        lines = [
            "[node]",
            f'name = "{self.name}"',
            f'state_dir = "{self.state_dir}"',
            f'runtime_dir = "{self.runtime_dir}"',
            f'jobs_dir = "{self.cluster.jobs_dir}"',
            f"budget = {{ client = {self.budget}, cluster = {self.budget} }}",
            "[cluster]",
            *[f"{key} = {json.dumps(value)}" for key, value in cluster.items() if value is not None],
            "[control]",
            f'socket = "{self.socket}"',
            self.settings,
        ]
        self.config_path.write_text("\n".join(lines) + "\n")

    # ---- life

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the daemon, without waiting for anything."""
        self.write_config()
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "coordd", "run", "--config", str(self.config_path)],
                cwd=self.root,
                env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.cluster.path), **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.process

    def start(self) -> Node:
        self.launch()
        return self.ready()

    def ready(self) -> Node:
        """Wait until this process, not an earlier one, reports that it is ready."""

        def look() -> bool:
            assert self.process is not None
            code = self.process.poll()
            assert code is None, f"{self.name} ended with {code}:\n{self.log()[-4000:]}"
            said = self.try_call("status") or {}
            return said.get("state") == "ready" and said.get("pid") == self.process.pid

        until(look, why=f"{self.name} is ready")
        return self

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill only the daemon, with SIGKILL."""
        self.signal(signal.SIGKILL)
        self.wait()

    def kill_family(self) -> int:
        """Kill the daemon, its runners, watchers and programs, as a power cut would; returns their number."""
        count = kill_at_once(self.family)
        if self.process is not None:
            self.wait()
        return count

    def stop(self) -> int:
        """Send SIGTERM, as `systemctl stop` does; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(LIMIT_S)

    def family(self) -> set[int]:
        marks = (f"{self.config_path}", f"{self.runtime_dir}/", f"{self.socket}")
        return processes(marks)

    # ---- what it says

    def call(self, method: str, **params: Any) -> Any:
        """Call a method on the control socket. Raises CallError, or OSError if nobody answers."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(self.patience_s)
            sock.connect(str(self.socket))
            sock.sendall(json.dumps({"id": 1, "method": method, "params": params}).encode() + b"\n")
            with sock.makefile("rb") as file:
                line = file.readline()
        if not line:
            raise ConnectionResetError("the daemon went away before it answered")
        answer = json.loads(line)
        if "error" in answer:
            raise CallError(answer["error"])
        return answer["result"]

    def try_call(self, method: str, **params: Any) -> Any:
        """Like ``call``, but returns None if nobody answers."""
        try:
            return self.call(method, **params)
        except OSError:
            return None

    def status(self) -> dict[str, Any]:
        return dict(self.call("status"))

    def ledger_is(self, state: str) -> dict[str, Any]:
        """Wait until this node reports this state of its ledger; returns all that it reports about the ledger."""
        until(lambda: self.status()["ledger"]["state"] == state, why=f"the ledger of {self.name} is {state}")
        return dict(self.status()["ledger"])

    def coordctl(self, *words: str, text: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the command; ``text`` is its standard input."""
        return subprocess.run(
            [*CTL, "--socket", str(self.socket), *words],
            cwd=self.root, input=text, capture_output=True, text=True, timeout=LIMIT_S, check=check,
        )  # fmt: skip

    def why(self, subject: str) -> str:
        return str(self.call("why", id=subject)["why"])

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def facts(self, run: str) -> list[dict[str, Any]]:
        """The facts that the runners of a run have written on this node, as long as their directories exist."""
        facts: list[dict[str, Any]] = []
        for path in sorted((self.runtime_dir / "runs").glob("*")):
            with contextlib.suppress(OSError, ValueError):
                if json.loads((path / "spec.json").read_text())["run"] == run:
                    facts += [json.loads(line) for line in (path / "facts").read_text().splitlines()]
        return facts

    def journal(self, kind: str = "") -> list[dict[str, Any]]:
        """The records of its journal that is not compressed yet; of this type only."""
        files = sorted((self.state_dir / "journal").glob("*.jsonl"))
        records = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [record for record in records if kind in ("", record["type"])]

    def runner(self, run: str) -> dict[str, Any]:
        """Wait until a run's runner has written its pid ("pid") and its watcher's ("watcher"); returns that fact."""

        def look() -> dict[str, Any] | None:
            said = [fact for fact in self.facts(run) if fact["fact"] == "adopted"]
            return said[-1] if said else None

        return until(look, why=f"the runner of {run} on {self.name}") or {}


class Cluster:
    """Nodes with one bus and one ledger, in a directory of their own."""

    def __init__(
        self,
        size: int = 3,
        *,
        lease: float = 8.0,
        renew: float = 1.0,
        ledger_timeout: float = 1.0,
        kill_grace: float = 3.0,
        heartbeat: float = 1.0,
        budget: int = 30,
        backend: str = "embedded",
        parent: str = "/tmp",
        **options: Any,
    ) -> None:
        """``backend``: embedded | production; ``options`` are the backend's."""
        self.path = Path(tempfile.mkdtemp(prefix="cd-", dir=parent))  # short: 107 bytes is the limit of a socket's path
        self.jobs_dir = self.path / "jobs"
        self.jobs_dir.mkdir()
        self.backend: Backend = BACKENDS[backend](self.path, **options)
        self.program = self.path / "program"
        self.program.write_text(PROGRAM)
        self.log_path = self.path / "runs.log"
        Path(f"{self.log_path}.d").mkdir()
        self.timing = {
            "lease": lease,
            "renew_interval": renew,
            "ledger_timeout": ledger_timeout,
            "kill_grace": kill_grace,
            "heartbeat_interval": heartbeat,
        }
        self.budget = budget
        self.nodes = [Node(self, f"n{number}") for number in range(1, size + 1)]

    # ---- jobs

    def job(self, name: str, verb: str, what: object = "", *, ending: str = "exit", code: int = 0, **keys: Any) -> str:
        """Write a job file whose program is PROGRAM. ``keys`` are the keys of the file; a dict is a table."""
        argv = [
            sys.executable,
            "-I",
            "-S",
            "-E",
            str(self.program),
            str(self.log_path),
            verb,
            str(what),
            ending,
            str(code),
        ]
        tables = {"command": {"argv": argv}} | {key: value for key, value in keys.items() if isinstance(value, dict)}
        lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items() if not isinstance(value, dict)]
        for table, items in tables.items():
            lines += [f"[{table}]", *[f"{key} = {json.dumps(value)}" for key, value in items.items()]]
        return self.job_file(name, "\n".join(lines) + "\n")

    def job_file(self, name: str, text: str) -> str:
        path = self.jobs_dir / f"{name}.toml"
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)
        return name

    def go(self, name: str) -> Path:
        """The file that a program with the verb ``until`` waits for."""
        return self.path / f"go-{name}"

    # ---- life

    def start(self) -> Cluster:
        """Start all nodes, and wait until they see each other."""
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.ready()
        self.meet()
        self.use_their_ledger()
        return self

    def use_their_ledger(self) -> None:
        """Wait until the brake for first starts has released every node: the node has seen its ledger, and knows that
        the others use the same one. If the nodes have different ledgers, the brake never releases them; then this
        method returns after BRAKE_S."""
        limit = time.monotonic() + BRAKE_S
        while time.monotonic() < limit and any(
            (node.try_call("status") or {"ledger": {}})["ledger"].get("not_used") for node in self.nodes if node.up
        ):
            time.sleep(LOOK_S)

    def meet(self) -> Cluster:
        """Wait until every node that is up counts all nodes that are up as alive."""
        up = [node for node in self.nodes if node.up]
        until(
            lambda: all(node.status()["members"]["alive"] == len(up) for node in up),
            why=f"{len(up)} nodes see each other",
        )
        return self

    def close(self) -> None:
        """Leave nothing running. If runs are still active, kill their processes; else wait until none is left."""
        for node in self.nodes:
            if node.up:
                node.signal(signal.SIGCONT)
                node.signal(signal.SIGTERM)
        for node in self.nodes:
            if node.process is not None:
                node.process.wait(LIMIT_S)
        if self.has_runs_going_on():
            kill_at_once(self.processes)
        else:
            until(lambda: not self.processes(), why="all runs are over, so no process is left")
        assert not self.processes()
        for node in self.nodes:
            own = [line for line in node.log().splitlines() if '.said",' not in line]  # not those of plug-ins
            assert not any("Traceback" in line for line in own), node.log()[-6000:]
        self.backend.close()
        if "COORDD_TESTS_KEEP" not in os.environ:  # set it to keep logs, journals and ledger
            shutil.rmtree(self.path)

    def abandon(self) -> None:
        """After a failed test, kill all processes without any check. The files stay, so that a person can read them."""
        kill_at_once(self.processes)
        for node in self.nodes:
            if node.process is not None:
                node.wait()
        self.backend.close()

    def has_runs_going_on(self) -> bool:
        """True if the ledger has active runs, or does not answer."""
        try:
            return any(row["state"] in ("received", "started") for row in self.rows())
        except OSError:
            return True

    def processes(self) -> set[int]:
        return processes([f"{self.path}/"])

    # ---- results

    def entries(self, run: str = "") -> list[Entry]:
        """The lines that the programs wrote, of one run or of all runs."""
        if not self.log_path.exists():
            return []
        entries = []
        for line in self.log_path.read_text().splitlines():
            of, attempt, token, node, word, at, wall, pid = line.split()
            if run in ("", of):
                entries.append(Entry(of, int(attempt), int(token), node, word, float(at), float(wall), int(pid)))
        return entries

    def starts(self, run: str = "") -> list[Entry]:
        return [entry for entry in self.entries(run) if entry.word == "start"]

    def launched(self, count: int) -> None:
        """Wait until that many programs have started."""
        until(lambda: len(self.starts()) >= count, why=f"{count} launches")

    @property
    def ledger_path(self) -> Path:
        """The embedded ledger's file."""
        assert isinstance(self.backend, Embedded)
        return self.backend.ledger_path

    @property
    def production(self) -> Production:
        """The servers of a production cluster."""
        assert isinstance(self.backend, Production)
        return self.backend

    def rows(self) -> list[dict[str, Any]]:
        """The ledger's rows, read without any daemon."""
        return self.backend.rows()

    def attempts(self, run: str) -> list[dict[str, Any]]:
        return self.backend.attempts(run)

    def row(self, run: str) -> dict[str, Any]:
        return self.backend.row(run)

    def started(self, run: str, attempt: int = 0) -> Entry:
        """Wait until the program of an attempt has started; returns its line."""
        return until(
            lambda: [entry for entry in self.starts(run) if entry.attempt == attempt], why=f"{run}/{attempt} starts"
        )[0]

    def becomes(self, run: str, *states: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
        """Wait until a run is in one of these states; returns its row."""

        def look() -> dict[str, Any] | None:
            row = self.row(run)
            return row if row.get("state") in states else None

        return until(look, limit_s, why=f"{run} becomes {' or '.join(states)}") or {}

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def owner(self, run: str, attempt: int = 0) -> Node:
        """The node on which an attempt's program runs."""
        return self.node(self.started(run, attempt).node)

    def others(self, *but: Node) -> list[Node]:
        return [node for node in self.nodes if node not in but]


@contextlib.contextmanager
def cluster_of(size: int = 3, **settings: Any) -> Iterator[Cluster]:
    """A cluster that leaves nothing behind. Its nodes are not started yet."""
    cluster = Cluster(size, **settings)
    try:
        yield cluster
    except BaseException:
        for node in cluster.nodes:
            print(f"==== {node.name}\n{node.log()[-6000:]}")
        cluster.abandon()
        raise
    cluster.close()
