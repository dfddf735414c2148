"""A ResourceManager: the REST interface of Hadoop 3. Submission is Hadoop RPC there (yarn_rpc.py); where a JVM takes
too long, a POST of ours stands in.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.clusters.wire import Asked, FakeServer, milliseconds

APPS = "/ws/v1/cluster/apps"
STANDBY = b"This is standby RM. Redirecting to the current active RM: http://elsewhere:8088/ws/v1/cluster/apps\n"

NOT_FOUND = {"RemoteException": {"exception": "NotFoundException"}}


class FakeYarn(FakeServer):
    """``apps`` by id, in the form of the wire. ``hidden``: they were accepted, and are not shown yet. ``drivers``: what
    the UIs behind its proxy answer, by id and path.
    """

    def __init__(self) -> None:
        super().__init__()
        self.apps: dict[str, dict[str, Any]] = {}
        self.hidden: set[str] = set()
        self.drivers: dict[str, dict[str, Any]] = {}
        self.standby = False
        self.filters = True  # False: it ignores applicationTags, as before Hadoop 2.4
        self.dies_slowly = False  # an application that is killed goes on until ``finish``
        self.started_on = milliseconds() - 30 * 86_400_000
        self.numbered = 0  # ids that were given away, also for what was never submitted
        self.submitted = 0
        self.rpc_port, self.principal = 0, ""  # of Hadoop's RPC on localhost; 0: there is none
        self.hostname, self.door_port = "127.0.0.1", 0  # where it is asked; 0: at its own port
        self.ticket = ""  # what a request must carry under SPNEGO, "": nothing

    def new(self) -> str:
        """An id for an application; nothing is there yet."""
        with self.lock:
            self.numbered += 1
            return f"application_{self.started_on}_{self.numbered:04d}"

    def submit(self, name: str, tags: str, state: str = "RUNNING", ident: str = "", user: str = "etl") -> str:
        """An application is accepted; returns its id."""
        with self.lock:
            self.submitted += 1
            ident = ident or self.new()
            self.apps[ident] = {
                "id": ident,
                "user": user,
                "name": name,
                "queue": "default",
                "state": state,
                "finalStatus": "UNDEFINED",
                "progress": 0.0,
                "trackingUI": "ApplicationMaster",
                "trackingUrl": f"{self.url}/proxy/{ident}/",
                "diagnostics": "",
                "clusterId": self.started_on,
                "applicationType": "SPARK",
                "applicationTags": tags.lower(),
                "startedTime": milliseconds(),
                "launchTime": milliseconds(),
                "finishedTime": 0,
                "elapsedTime": 1,
            }
            return ident

    def finish(self, ident: str, final: str = "SUCCEEDED", state: str = "FINISHED", diagnostics: str = "") -> None:
        with self.lock:
            ended = {"state": state, "finalStatus": final, "finishedTime": milliseconds(), "diagnostics": diagnostics}
            self.apps[ident].update(ended)

    def alive(self) -> list[str]:
        with self.lock:
            return [ident for ident, app in self.apps.items() if app["finishedTime"] == 0]

    def of_mark(self, mark: str) -> list[str]:
        with self.lock:
            return [ident for ident, app in self.apps.items() if mark in app["applicationTags"].split(",")]

    def purge(self, ident: str) -> None:
        with self.lock:
            del self.apps[ident]

    def configuration(self, directory: Path, *others: FakeYarn) -> dict[str, str]:
        """Write yarn-site.xml for this one, or for a pair; returns the environment."""
        directory.mkdir(parents=True, exist_ok=True)
        pair = (self, *others)
        settings = {"yarn.resourcemanager.hostname": self.hostname}
        if others:
            settings |= {"yarn.resourcemanager.ha.enabled": "true", "yarn.resourcemanager.ha.rm-ids": "rm1, rm2"}
        for number, one in enumerate(pair, 1):
            ident = f".rm{number}" if others else ""
            port = one.door_port or one.port
            settings[f"yarn.resourcemanager.webapp.address{ident}"] = f"${{yarn.resourcemanager.hostname}}:{port}"
        if self.rpc_port:
            settings["yarn.resourcemanager.address"] = f"localhost:{self.rpc_port}"
            settings["yarn.resourcemanager.principal"] = self.principal
        text = "".join(
            f"  <property><name>{name}</name><value>{value}</value></property>\n" for name, value in settings.items()
        )
        path = directory / "yarn-site.xml"
        path.write_text(f'<?xml version="1.0"?>\n<configuration>\n{text}</configuration>\n')
        return {"HADOOP_CONF_DIR": str(directory), "PATH": os.environ["PATH"], "HOME": str(directory), "USER": "etl"}

    def answer(self, asked: Asked) -> tuple[int, Any] | tuple[int, bytes, dict[str, str]]:
        parts = urlsplit(asked.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if self.standby:
            return 307, STANDBY, {"Location": f"http://elsewhere:8088{parts.path}", "Content-Type": "text/plain"}
        if self.ticket and asked.headers.get("authorization") != f"Negotiate {self.ticket}":
            return 401, b"<html>Authentication required</html>", {"WWW-Authenticate": "Negotiate"}
        with self.lock:
            if asked.method == "POST" and parts.path == "/submit":
                said = asked.json()
                user = said.get("user", "etl")
                return 200, {"id": self.submit(said["name"], said["tags"], "ACCEPTED", said["id"], user)}
            if asked.method == "POST" and parts.path == "/new":
                return 200, {"id": self.new()}
            if asked.method == "PUT" and parts.path.startswith(f"{APPS}/") and parts.path.endswith("/state"):
                return self._kill(parts.path.split("/")[-2], query.get("user.name", ""), asked)
            if parts.path.startswith("/proxy/"):
                ident, _, path = parts.path.removeprefix("/proxy/").partition("/")
                said = self.drivers.get(ident, {}).get(f"/{path}")
                return (200, said) if said is not None else (404, b"<html>no such page</html>", {})
            if parts.path == APPS:
                return 200, {"apps": self._listed(query)}
            if parts.path.startswith(f"{APPS}/") and (app := self.apps.get(parts.path.split("/")[-1])):
                return (200, {"app": app}) if app["id"] not in self.hidden else (404, NOT_FOUND)
            if parts.path == "/ws/v1/cluster/info":
                return 200, {"clusterInfo": {"startedOn": self.started_on, "haState": "ACTIVE"}}
            if parts.path == "/ws/v1/cluster/metrics":
                return 200, {"clusterMetrics": {"appsSubmitted": self.submitted}}
        return 404, NOT_FOUND

    def _listed(self, query: dict[str, str]) -> dict[str, Any] | None:
        found = [app for ident, app in self.apps.items() if ident not in self.hidden]
        if "applicationTags" in query and self.filters:
            wanted = set(query["applicationTags"].lower().split(","))
            found = [app for app in found if wanted & set(app["applicationTags"].split(","))]
        if "states" in query:
            found = [app for app in found if app["state"] in query["states"].split(",")]
        if "finishedTimeEnd" in query:
            found = [app for app in found if app["finishedTime"] <= int(query["finishedTimeEnd"])]
        found = found[: int(query.get("limit", "10000"))]
        return {"app": found} if found else None

    def _kill(self, ident: str, user: str, asked: Asked) -> tuple[int, Any]:
        if not user and not self.ticket:
            return 403, {"RemoteException": {"message": "The default static user cannot carry out this operation."}}
        if ident not in self.apps:
            return 404, NOT_FOUND
        assert asked.json() == {"state": "KILLED"}
        if not self.dies_slowly and not self.apps[ident]["finishedTime"]:
            self.finish(ident, "KILLED", "KILLED", f"Application killed by user {user}")
        return 202, {"state": self.apps[ident]["state"]}
