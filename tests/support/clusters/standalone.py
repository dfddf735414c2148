"""A Standalone master and its worker: their web interfaces in the form of Spark 4.3, behind one port.

The real ones are in support/servers/spark.py; this one misbehaves on request.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from coordd.core.jobs.applications import MARK
from support.clusters.wire import Asked, FakeServer, milliseconds

WORKER = "worker-20261124110429-127.0.0.1-36141"
CREATE = "/v1/submissions/create"
KILL = "/v1/submissions/kill/"

ROW = """        <tr>
      <td>{id}</td>
      <td>org.example.Waits</td>
      <td>{state}</td>
      <td sorttable_customkey="1">
        1
      </td>
      <td sorttable_customkey="64">
        64.0 MiB
      </td>
      <td></td>
      <td>
        <a href="http://localhost:8181/logPage/?driverId={id}&amp;logType=stdout">stdout</a>
        <a href="http://localhost:8181/logPage/?driverId={id}&amp;logType=stderr">stderr</a>
      </td>
      <td>
        {notes}
      </td>
    </tr>"""


class FakeStandalone(FakeServer):
    """``drivers`` as the master lists them, ``on_worker``: state and notes as the worker shows them."""

    def __init__(self) -> None:
        super().__init__()
        self.drivers: dict[str, dict[str, Any]] = {}
        self.on_worker: dict[str, tuple[str, str]] = {}
        self.logs: dict[str, str] = {}
        self.status = "ALIVE"
        self.worker_state = "ALIVE"
        self.worker_fails = False
        self.refuses: str = ""  # why the REST server does not end a driver

    def submit(self, mark: str, state: str = "RUNNING") -> str:
        """A driver is accepted; a worker has it, unless its state is SUBMITTED."""
        with self.lock:
            ident = f"driver-20261124110503-{len(self.drivers):04d}"
            self.drivers[ident] = {
                "id": ident, "starttime": str(milliseconds()), "state": state, "cores": 1, "memory": 64,
                "resources": {}, "submitdate": "Tue Nov 24 11:05:03 UTC 2026", "worker": "None",
                "mainclass": "org.example.Waits",
            }  # fmt: skip
            option = f'"-D{MARK}={mark}"' if mark else ""
            self.logs[ident] = (
                f'Launch Command: "/usr/bin/java" "-cp" "/jars/*" "-Dspark.yarn.tags=***(redacted)" {option}'
                f' "org.apache.spark.deploy.worker.DriverWrapper" "/w/{ident}/waits.jar" "org.example.Waits"\n'
                + "=" * 40 + "\n"
            )  # fmt: skip
            if state != "SUBMITTED":
                self.drivers[ident]["worker"] = WORKER
                self.on_worker[ident] = (state, "")
            return ident

    def ends(self, ident: str, state: str, on_worker: str | None = None, notes: str = "") -> None:
        """``on_worker``: another state there; "": the worker does not show it."""
        with self.lock:
            self.drivers[ident]["state"] = state
            self.on_worker[ident] = (state if on_worker is None else on_worker, notes)
            if on_worker == "":
                del self.on_worker[ident]

    def answer(self, asked: Asked) -> tuple[int, Any] | tuple[int, bytes, dict[str, str]]:
        parts = urlsplit(asked.path)
        with self.lock:
            if parts.path == "/json/":
                return 200, self._master()
            if parts.path == CREATE and asked.method == "POST":
                ident = self.submit(asked.json()["sparkProperties"][MARK])
                return 200, {"action": "CreateSubmissionResponse", "success": True, "submissionId": ident}
            if parts.path.startswith(KILL) and asked.method == "POST":
                return self._kill(parts.path.removeprefix(KILL))
            if self.worker_fails:
                return 500, b"<html>no</html>", {}
            if parts.path == "/log/":
                ident = parse_qs(parts.query)["driverId"][0]
                return 200, self.logs.get(ident, "Error: invalid log directory").encode(), {}
            if parts.path == "/":
                rows = [ROW.format(id=ident, state=said[0], notes=said[1]) for ident, said in self.on_worker.items()]
                return 200, f"<html><tbody>{''.join(rows)}</tbody></html>".encode(), {}
        return 404, b"", {}

    def _master(self) -> dict[str, Any]:
        ended = ("FINISHED", "FAILED", "KILLED", "ERROR")
        drivers = list(self.drivers.values())
        worker = {"id": WORKER, "host": "127.0.0.1", "port": 36141, "webuiaddress": self.url, "cores": 8}
        return {
            "url": "spark://127.0.0.1:7077",
            "workers": [{**worker, "state": self.worker_state, "lastheartbeat": milliseconds()}],
            "activeapps": [],
            "completedapps": [],
            "activedrivers": [one for one in drivers if one["state"] not in ended],
            "completeddrivers": [one for one in drivers if one["state"] in ended],
            "status": self.status,
        }

    def _kill(self, ident: str) -> tuple[int, Any]:
        said = {"action": "KillSubmissionResponse", "serverSparkVersion": "4.3.0", "submissionId": ident}
        if self.refuses:
            return 200, {**said, "success": False, "message": self.refuses}
        if ident not in self.drivers:
            gone = f"Driver {ident} has already finished or does not exist"
            return 200, {**said, "success": False, "message": gone}
        self.ends(ident, "KILLED")
        return 200, {**said, "success": True, "message": f"Kill request for {ident} submitted"}
