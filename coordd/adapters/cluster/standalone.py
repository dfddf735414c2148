"""Drivers on a Spark Standalone cluster, through the web interfaces of its master and workers.

The master lists drivers by id, and shows none of their properties. A worker writes the command of each driver into the
driver's log, with our mark. So a driver is recognised by its id, if the ledger has it, else by its log once it runs.

A master's FINISHED alone is not a success: it shows an application so when its driver was killed, and says of a driver
what it was told. The end is what the worker says that ran the driver and has seen its exit code.
"""

from __future__ import annotations

import html
import math
import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from coordd.adapters.cluster.http import ANSWER_S, Answer, DriverPlace, read_json, request, shown
from coordd.core.jobs import applications
from coordd.core.jobs.applications import ALIVE, ENDED, FAILED, KILLED, MARK, SUCCEEDED, Application
from coordd.core.redaction import redact_text, telling_line
from coordd.errors import UnavailableError

# Spark's default ports.
UI_PORT, REST_PORT = "8080", "6066"

# The states of a driver that is over, as its worker says. ERROR: it could not be started.
BY_WORKER = {"FINISHED": SUCCEEDED, "FAILED": FAILED, "KILLED": KILLED, "ERROR": FAILED}

# What the master's word is worth where no worker tells. Its ERROR may mean that it has lost the worker.
BY_MASTER = {"FINISHED": ENDED, "FAILED": FAILED, "KILLED": KILLED, "ERROR": ENDED}

# Ends by the word of the master that are not certain: it may be a success, or the worker was lost.
UNCERTAIN = {said for said, word in BY_MASTER.items() if word == ENDED}

# All that the workers are asked in one look-up takes at most this many times as long as one answer.
LOOKUP_ANSWERS = 3.0

# The worker of a driver that has none.
NO_WORKER = "None"

# The command is at the beginning of the log.
COMMAND_BYTES = 65536
TAIL_BYTES = 16384
_COMMAND = "Launch Command:"
_MARK = re.compile(rf'"-D{re.escape(MARK)}=([^"]*)"')
_CELL = re.compile(r"<td[^>]*>(.*?)</td>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")

# The cells of a driver's row on a worker's page: id, main class, state, cores, memory, resources, logs, notes.
CELLS = 8

DETAIL_MAX = 300


@dataclass(frozen=True)
class State:
    """One look-up: what the active master says. ``workers``: the web address of each living worker, by its id.
    ``until``: its deadline (monotonic seconds). ``away``: why a worker, by its address, is not asked again in it.
    """

    place: str
    drivers: list[Mapping[str, Any]]
    workers: dict[str, str]
    until: float = math.inf
    away: dict[str, str] = field(default_factory=dict)

    def left_s(self) -> float:
        """Seconds until the deadline. Raises UnavailableError: it is over."""
        left_s = self.until - time.monotonic()
        if left_s <= 0:
            slow = "; ".join(self.away.values()) or "the answers of its workers are slow"
            raise UnavailableError(f"{self.place}: the look-up of its drivers took too long: {slow}")
        return left_s


class Marks(NamedTuple):
    """The marks in a driver's command; empty for the drivers of others."""

    run: str = ""
    cluster: str = ""
    attempt: int = -1
    token: int = 0


class Standalone:
    """The drivers of one Standalone cluster."""

    kind = "standalone"

    def __init__(self, master: str, conf: Mapping[str, str], *, answer_s: float = ANSWER_S) -> None:
        """``conf``: Spark's settings, for the ports of the master. Raises UnavailableError: no host is named."""
        hosts = [one.rpartition(":")[0] for one in master.removeprefix("spark://").split(",")]
        if not all(hosts):
            raise UnavailableError(f"{master}: expected spark://HOST:PORT, or several HOST:PORT")
        ui, rest = conf.get("spark.master.ui.port", UI_PORT), conf.get("spark.master.rest.port", REST_PORT)
        self._rest = {f"http://{host}:{ui}": f"http://{host}:{rest}" for host in hosts}
        self._answer_s = answer_s
        self._marks: dict[str, Marks] = {}  # by driver: they never change
        self._without: set[str] = set()  # ended drivers whose log has no command: it will have none
        self.place = " or ".join(self._rest)

    def find(self, mark: str, known: Collection[str] = (), tokens: Collection[int] = ()) -> list[Application]:
        """All drivers of a run that are recognised, also ended ones. Raises UnavailableError: nobody can tell."""
        state = self._state()
        found = []
        for driver in state.drivers:
            marks = self._marks_of(driver, state)
            if driver["id"] in known or (marks is not None and marks.run == mark):
                found.append(self._application(driver, marks or Marks(run=mark), state))
        for ident in sorted(set(known) - {driver["id"] for driver in state.drivers}):
            found += self._forgotten(ident, mark, state)
        return sorted(found, key=lambda one: one.id)

    def of_cluster(self, mark: str) -> list[Application]:
        """All drivers of a coordd cluster that are recognised. Raises UnavailableError."""
        state = self._state()
        marked = [(driver, self._marks_of(driver, state)) for driver in state.drivers]
        found = [self._application(driver, marks, state) for driver, marks in marked if marks and marks.cluster == mark]
        return sorted(found, key=lambda one: one.id)

    def end(self, ident: str) -> None:
        """Ask for the end of a driver; it may take a while. Raises UnavailableError when that is refused."""
        url = f"{self._rest[self._state().place]}/v1/submissions/kill/{quote(ident)}"
        try:
            answer = request("POST", url, body=b"", answer_s=self._answer_s)
        except UnavailableError as exc:
            raise UnavailableError(
                f"{exc}: a driver is ended through the master's REST server (spark.master.rest.enabled,"
                " spark.master.rest.port)"
            ) from exc
        said = read_json(answer, url)
        if answer.status != 200 or not (said.get("success") or "already finished" in str(said.get("message"))):
            raise UnavailableError(
                f"{url}: expected success for its end, found {answer.status} {shown(answer.content)}"
            )

    def hidden(self, known: Collection[str] = (), *, ended: bool = False, named: str = "") -> dict[str, str]:
        """By id, why living drivers may be the run's and are not recognised. ``ended``: also those that have ended,
        unless they surely failed or were killed. Raises UnavailableError.
        """
        state = self._state()
        over = BY_MASTER.keys() - UNCERTAIN if ended else BY_MASTER.keys()
        return {
            driver["id"]: f"{state.place}: whose driver {driver['id']} is cannot be told yet: it waits for a worker, or"
            " its worker does not show its log"
            for driver in state.drivers
            if not (driver["id"] in known or driver["state"] in over) and self._marks_of(driver, state) is None
        }

    def keeps_since(self, since: float) -> str:
        """Nothing that a master shows proves that it has forgotten no driver."""
        return "a Standalone master forgets ended drivers when it restarts, and does not say when it did"

    def drivers_places(self, ident: str, ports: range) -> list[DriverPlace]:
        """The ports of Spark's UIs on the driver's worker: which of them is its one, only the UI tells. Raises
        UnavailableError.
        """
        state = self._state()
        of = next((str(driver.get("worker")) for driver in state.drivers if driver["id"] == ident), "")
        host = urlsplit(state.workers.get(of, "")).hostname
        if not host:
            raise UnavailableError(f"{state.place}: {ident} has no worker now")
        named = f"[{host}]" if ":" in host else host
        return [_place(f"http://{named}:{one}") for one in ports]

    # ---- the master

    def _state(self) -> State:
        problems = []
        for place in self._rest:
            try:
                return self._read(place)
            except UnavailableError as exc:
                problems.append(str(exc))
        raise UnavailableError("; ".join(problems))

    def _read(self, place: str) -> State:
        url = f"{place}/json/"
        content = read_json(self._get(url), url)
        if content.get("status") != "ALIVE":
            raise UnavailableError(f'{url}: expected a master with status ALIVE, found "{content.get("status")}"')
        try:
            drivers = [*content["activedrivers"], *content["completeddrivers"]]
            if not all(isinstance(one["id"], str) and isinstance(one["state"], str) for one in drivers):
                raise TypeError("a driver without id or state")
            alive = [one for one in content["workers"] if one["state"] == "ALIVE"]
            workers = {one["id"]: str(one["webuiaddress"]).rstrip("/") for one in alive}
            return State(place, drivers, workers, time.monotonic() + LOOKUP_ANSWERS * self._answer_s)
        except (KeyError, TypeError) as exc:
            raise UnavailableError(f"{url}: expected lists of drivers and workers, found {exc!r}") from exc

    def _application(self, driver: Mapping[str, Any], marks: Marks, state: State) -> Application:
        ident, said = driver["id"], driver["state"]
        of = str(driver.get("worker"))
        worker = state.workers.get(of, "")
        word, detail = ALIVE, ""
        if said in BY_MASTER:
            # After a restart the master does not know which worker has had the driver.
            asked = [*state.workers.values()] if of == NO_WORKER else [worker] if worker else []
            worker, by_worker, notes = self._first_hand(ident, asked, state)
            if by_worker:
                word, detail = BY_WORKER.get(by_worker, ALIVE), notes
            else:
                word, detail = BY_MASTER[said], f"the master says {said}, and no worker tells how it ended"
            if word == FAILED and by_worker and not detail:
                detail = self._last_words(worker, ident, state)
        return _made(ident, word, detail, marks, worker, driver)

    # ---- the workers

    def _forgotten(self, ident: str, mark: str, state: State) -> list[Application]:
        """A driver that ended before the master was restarted: its worker still knows it."""
        worker, said, notes = self._first_hand(ident, state.workers.values(), state)
        return [_made(ident, BY_WORKER.get(said, ALIVE), notes, Marks(run=mark), worker, {})] if said else []

    def _first_hand(self, ident: str, workers: Iterable[str], state: State) -> tuple[str, str, str]:
        """Which worker has had a driver, and its state and notes there; "" if none shows it."""
        for worker in workers:
            said, notes = self._by_worker(worker, ident, state)
            if said:
                return worker, said, notes
        return "", "", ""

    def _last_words(self, worker: str, ident: str, state: State) -> str:
        """The line of a driver's log that says most about its failure, redacted; "" if the log is gone."""
        try:
            query = f"driverId={quote(ident)}&logType=stderr&byteLength={TAIL_BYTES}"
            answer = self._ask(worker, f"/log/?{query}", state)
        except UnavailableError:
            return ""
        return telling_line(answer.content.decode(errors="replace").splitlines()[1:])

    def _by_worker(self, worker: str, ident: str, state: State) -> tuple[str, str]:
        """State and notes of a driver on its worker's page; "" if the page does not show it."""
        page = self._ask(worker, "/", state).content.decode(errors="replace")
        _, there, row = page.partition(f"<td>{html.escape(ident)}</td>")
        if not there:
            return "", ""
        cells = [" ".join(html.unescape(_TAG.sub(" ", cell)).split()) for cell in _CELL.findall(row)[: CELLS - 1]]
        if len(cells) < 2:
            raise UnavailableError(f"{worker}/: expected the state of {ident}, found {row[:80]!r}")
        return cells[1], cells[-1] if len(cells) == CELLS - 1 else ""

    def _marks_of(self, driver: Mapping[str, Any], state: State) -> Marks | None:
        """The marks of a driver; None if they cannot be read (yet). Raises UnavailableError: the look-up takes too
        long.
        """
        ident, worker = driver["id"], state.workers.get(str(driver.get("worker")), "")
        if ident not in self._marks and ident not in self._without and worker:
            state.left_s()
            query = f"driverId={quote(ident)}&logType=stderr&offset=0&byteLength={COMMAND_BYTES}"
            try:
                text = self._ask(worker, f"/log/?{query}", state).content.decode(errors="replace")
            except UnavailableError:
                return None
            _, there, command = text.partition(_COMMAND)
            if there:
                self._marks[ident] = _marks(command.partition("\n")[0])
            elif driver["state"] in BY_MASTER:
                self._without.add(ident)
        return self._marks.get(ident)

    def _ask(self, worker: str, path: str, state: State) -> Answer:
        """A worker that did not answer is not asked again in the same look-up: each of its drivers would cost the time
        of an answer. Raises UnavailableError.
        """
        if worker in state.away:
            raise UnavailableError(state.away[worker])
        left_s = state.left_s()
        try:
            answer = request("GET", worker + path, answer_s=min(self._answer_s, left_s))
        except UnavailableError as exc:
            state.away[worker] = str(exc)
            raise
        return _good(answer, worker + path)

    def _get(self, url: str) -> Answer:
        return _good(request("GET", url, answer_s=self._answer_s), url)


def _place(address: str) -> DriverPlace:
    return DriverPlace(address, lambda path, answer_s: request("GET", address + path, answer_s=answer_s))


def _good(answer: Answer, url: str) -> Answer:
    if answer.status != 200:
        raise UnavailableError(f"{url.partition('?')[0]}: expected 200, found {answer.status} {shown(answer.content)}")
    return answer


def _marks(command: str) -> Marks:
    match = _MARK.search(command)
    words = match[1].split(".") if match else []
    if len(words) != 4:
        return Marks()
    run, cluster, attempt, token = words
    return Marks(run, cluster, applications.number(attempt, missing=-1), applications.number(token, missing=0))


def _made(ident: str, state: str, detail: str, marks: Marks, worker: str, driver: Mapping[str, Any]) -> Application:
    log = f"{worker}/logPage/?driverId={quote(ident)}&logType=stderr" if worker else ""
    if state == FAILED and not detail:
        detail = f"its exit code was not 0; its log: {log or 'on its worker'}"
    started = str(driver.get("starttime", ""))
    return Application(
        id=ident,
        state=state,
        run_mark=marks.run,
        token=marks.token,
        attempt=marks.attempt,
        detail=redact_text(detail)[:DETAIL_MAX],
        name=str(driver.get("mainclass", ""))[:DETAIL_MAX],
        started_at=applications.number(started, missing=0) / 1000,
        ui=log,
    )
