"""Asks a Spark driver how far it is, through the REST interface of its UI.

The driver's UI takes the first free port from 4040 on, or any other, so its place is searched: among the addresses on
which the processes of this attempt listen. Only those are asked that can be a UI (all addresses of the machine, or a
port from spark.ui.port on): the driver's other listeners would log a protocol error. The UI must then name the
application, and the run and the attempt that stand in the driver's conf; nobody else's answer counts.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from coordd.adapters.drivers import listeners
from coordd.adapters.drivers.listeners import Listener
from coordd.adapters.spark import PROPERTIES_BYTES_MAX, SECRETS_FILE
from coordd.errors import RefusedError, UnavailableError
from coordd.ports import Driven, Seen

# Spark keeps 1000 jobs of under 1 kB each; a site may keep more, and describe them at length.
ANSWER_BYTES_MAX = 4 * 1024 * 1024
PIECE_BYTES = 64 * 1024

# Spark's defaults: the first port of the UI, and how many more it tries.
UI_PORT = 4040
UI_PORTS = 17

# Of all listeners that could be a UI, this many are asked.
CANDIDATES_MAX = 8

# A number beyond is not a count of tasks.
COUNT_MAX = 2**53

# One line of a properties file; Spark splits at the first "=", ":" or blank.
_PROPERTY = re.compile(
    r"^\s*(spark\.ui\.enabled|spark\.ui\.port|spark\.driver\.host)(?:\s*[=:]\s*|\s+)(\S+)", re.MULTILINE
)

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")

OFF = "Spark's UI is switched off for this job (spark.ui.enabled), and only the UI tells the progress"


class SparkUi:
    """ports.DriverUi: one attempt's driver."""

    def __init__(self, driven: Driven) -> None:
        self._driven = driven
        self._conf = _effective(driven)
        self._place: tuple[Listener, str, str] | None = None  # where it is, the application's path, the UI's address

    def look(self, application_id: str, within_s: float) -> Seen:
        """How far it is. Raises UnavailableError (later perhaps) or RefusedError (never for this attempt)."""
        if is_off(self._conf):
            raise RefusedError(OFF, kind="no_ui")
        deadline = time.monotonic() + within_s
        if self._place is None:
            self._place = self._find(application_id, deadline)
        listener, path, address = self._place
        try:
            jobs = _asked(listener, f"{path}/jobs", deadline)
        except UnavailableError:
            self._place = None  # a driver may start a second SparkContext, with another UI
            raise
        return counted(jobs, address)

    def _find(self, application_id: str, deadline: float) -> tuple[Listener, str, str]:
        found = [one for one in listeners.of_program(self._driven.program, self._driven.user) if self._may_be_ui(one)]
        why = "the driver's UI is not there yet, or the application has switched it off"
        for listener in sorted(found, key=lambda one: one.port)[:CANDIDATES_MAX]:
            try:
                for application in listed(_asked(listener, "/api/v1/applications", deadline)):
                    known = str(application.get("id", "")) if isinstance(application, dict) else ""
                    if known and application_id in ("", known):
                        path = f"/api/v1/applications/{quote(known, safe='')}"
                        address = self._recognised(_asked(listener, f"{path}/environment", deadline), listener.port)
                        return listener, path, address
            except UnavailableError as exc:
                why = str(exc)
        raise UnavailableError(why)

    def _may_be_ui(self, listener: Listener) -> bool:
        return listener.everywhere or listener.port in ui_ports(self._conf)

    def _recognised(self, environment: Any, port: int) -> str:
        """The UI's address for people, if this driver is the attempt's. Raises UnavailableError."""
        conf, driven = properties_of(environment), self._driven
        if not is_of(conf, driven):
            raise UnavailableError(f"the UI on port {port} is another driver's")
        host = conf.get("spark.driver.host") or driven.host
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _effective(driven: Driven) -> Mapping[str, str]:
    """The settings of the UI. The properties file of the attempt, if it is there, has the site's settings too."""
    try:
        with open(f"{driven.directory}/{SECRETS_FILE}", encoding="utf-8") as file:
            text = file.read(2 * PROPERTIES_BYTES_MAX)
    except (OSError, UnicodeDecodeError):
        return driven.conf  # a run in a unit: its file is its user's
    return {**driven.conf, **dict(_PROPERTY.findall(text))}


def properties_of(environment: Any) -> dict[str, str]:
    """Spark's settings, as a driver tells them. Raises UnavailableError."""
    pairs = environment.get("sparkProperties") if isinstance(environment, dict) else None
    return {str(pair[0]): str(pair[1]) for pair in listed(pairs) if isinstance(pair, list) and len(pair) == 2}


def is_of(conf: Mapping[str, str], driven: Driven) -> bool:
    """True if the driver with these settings is that of the attempt."""
    return (conf.get("spark.coordd.run"), conf.get("spark.coordd.attempt")) == (driven.run, str(driven.attempt))


def ui_ports(conf: Mapping[str, str]) -> range:
    """The ports that a driver tries for its UI, in this order."""
    port = conf.get("spark.ui.port", "")
    first = int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else UI_PORT
    return range(first, first + UI_PORTS)


def is_off(conf: Mapping[str, str]) -> bool:
    """True if the driver has no UI."""
    return conf.get("spark.ui.enabled", "true").lower() == "false"


def counted(jobs: Any, address: str) -> Seen:
    """The sums over all jobs of the application. Spark runs no task again whose output is there: those are skipped."""
    stages = stages_done = tasks = tasks_done = tasks_failed = 0
    for job in listed(jobs):
        if not isinstance(job, dict):
            raise UnavailableError("the driver's UI answers something else than jobs")
        stages += max(0, len(listed(job.get("stageIds"))) - _count(job, "numSkippedStages"))
        stages_done += _count(job, "numCompletedStages")
        tasks += max(0, _count(job, "numTasks") - _count(job, "numSkippedTasks"))
        tasks_done += _count(job, "numCompletedTasks")
        tasks_failed += _count(job, "numFailedTasks")
    return Seen(stages, min(stages_done, stages), tasks, min(tasks_done, tasks), tasks_failed, address)


def _count(job: Mapping[str, Any], key: str) -> int:
    value = job.get(key, 0)
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise UnavailableError(f"the driver's UI answers no number for {key}")
    return value


def listed(value: Any) -> list[Any]:
    """A list that a UI has answered. Raises UnavailableError."""
    if not isinstance(value, list):
        raise UnavailableError("the driver's UI answers something else than its REST interface")
    return value


def _asked(listener: Listener, path: str, deadline: float) -> Any:
    """One question, as JSON. HTTP/1.0 with one socket: http.client bounds each read, but not all of them together.

    Raises UnavailableError.
    """
    where = f"the driver's UI on port {listener.port}"
    try:
        head, _, body = _exchanged(listener, path, deadline).partition(b"\r\n\r\n")
    except OSError as exc:
        raise UnavailableError(f"{where} does not answer: {exc.strerror or exc}") from exc
    status = _STATUS.match(head)
    if status is None:
        raise UnavailableError(f"{where} does not speak HTTP")
    if status[1] != b"200":
        told = {b"302": " (a proxy or TLS is in front of it)", b"401": " (it wants a log-in)", b"403": " (it refuses)"}
        raise UnavailableError(f"{where} answers {status[1].decode()}{told.get(status[1], '')}")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise UnavailableError(f"{where} does not answer in JSON; it may still start") from exc


def _exchanged(listener: Listener, path: str, deadline: float) -> bytes:
    """The whole answer. Raises OSError."""
    with socket.create_connection((listener.address, listener.port), timeout=_left_s(deadline)) as sock:
        sock.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\nAccept: application/json\r\n\r\n".encode())
        pieces: list[bytes] = []
        size = 0
        while True:
            sock.settimeout(_left_s(deadline))
            piece = sock.recv(PIECE_BYTES)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
            size += len(piece)
            if size > ANSWER_BYTES_MAX:
                raise OSError(f"more than {ANSWER_BYTES_MAX} bytes")


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    return left_s
