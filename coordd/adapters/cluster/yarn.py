"""Applications on YARN, through the ResourceManager's REST interface.

A pair of ResourceManagers is asked in turn: the one on standby redirects, and is passed over. An answer 401 with
``Negotiate`` is asked again by curl, which has Kerberos; it uses the ticket of the program's environment.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from coordd.adapters.cluster import http
from coordd.adapters.cluster.hadoop import resource_managers, value_of
from coordd.adapters.cluster.http import ANSWER_BYTES_MAX, ANSWER_S, Answer, DriverPlace, read_json, request, shown
from coordd.core.jobs import applications
from coordd.core.jobs.applications import ALIVE, ENDED, FAILED, KILLED, SUCCEEDED, Application
from coordd.core.redaction import redact_text
from coordd.errors import UnavailableError

APPS = "/ws/v1/cluster/apps"
ALIVE_STATES = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING")
FINAL = {"SUCCEEDED": SUCCEEDED, "FAILED": FAILED, "KILLED": KILLED}

# Hadoop's default of yarn.resourcemanager.max-completed-applications.
COMPLETED_MAX = 1000

# The clocks of this machine and of the ResourceManager may differ by this (seconds).
CLOCKS_DIFFER_S = 300.0

DETAIL_MAX = 300


class Yarn:
    """The applications of one YARN cluster."""

    kind = "yarn"

    def __init__(self, conf: Mapping[str, str], env: Mapping[str, str], *, answer_s: float = ANSWER_S) -> None:
        """``conf``: Spark's settings; ``env``: of the program. Raises UnavailableError: no ResourceManager is named."""
        self._urls, self._settings = resource_managers(conf, env)
        self._env = dict(env)
        self._answer_s = answer_s
        self.place = " or ".join(self._urls)

    def find(self, mark: str, known: Collection[str] = (), tokens: Collection[int] = ()) -> list[Application]:
        """All applications of a run, also ended ones. Raises UnavailableError: nobody can tell."""
        return [one for one in self._listed(mark) if one.run_mark == mark]

    def of_cluster(self, mark: str) -> list[Application]:
        """All applications of a coordd cluster. Raises UnavailableError."""
        return self._listed(f"{applications.PREFIX}{applications.CLUSTER}-{mark}")

    def end(self, ident: str) -> None:
        """Ask for the end of an application; it may take a while. Raises UnavailableError when that is refused."""
        body = json.dumps({"state": "KILLED"}).encode()
        url, answer = self._ask("PUT", f"{APPS}/{quote(ident)}/state?user.name={quote(self._user())}", body)
        if answer.status not in (200, 202):
            raise UnavailableError(
                f"{url}: expected 202 for the end of {ident}, found {answer.status} {shown(answer.content)}"
            )

    def hidden(self, known: Collection[str] = (), *, ended: bool = False, named: str = "") -> dict[str, str]:
        """Tags are shown as soon as an application is. But spark-submit prints an id before it submits anything, so
        that one is asked for: 404 means that the ResourceManager has no such application. Raises UnavailableError.
        """
        if not named:
            return {}
        url, answer = self._ask("GET", f"{APPS}/{quote(named)}")
        if answer.status == 404:
            return {}
        if answer.status != 200:
            raise UnavailableError(f"{url}: expected 200 or 404, found {answer.status} {shown(answer.content)}")
        return untagged(url, named)

    def keeps_since(self, since: float) -> str:
        """Why an application that was submitted after ``since`` (Unix seconds) may have been forgotten; "": it cannot.

        The ResourceManager forgets the applications that ended first. So as long as it shows one that ended before
        ``since``, it shows all that ended later. Otherwise it must have been started before, and must have had fewer
        applications in all than it keeps. Raises UnavailableError.
        """
        begin_ms = int((since - CLOCKS_DIFFER_S) * 1000)
        query = f"{APPS}?states=FINISHED,FAILED,KILLED&finishedTimeEnd={begin_ms}&limit=1&deSelects=resourceRequests"
        if any(0 < one.ended_at * 1000 <= begin_ms for one in self._parsed(query)):
            return ""
        info = self._object("/ws/v1/cluster/info", "clusterInfo")
        if not 0 < _number(info.get("startedOn")) < begin_ms:
            return "the ResourceManager was started after the submission, and shows no older application"
        said = value_of(self._settings, "yarn.resourcemanager.max-completed-applications", str(COMPLETED_MAX))
        kept = int(said) if said.isdecimal() else 0
        submitted = _number(self._object("/ws/v1/cluster/metrics", "clusterMetrics").get("appsSubmitted"))
        if not 0 <= submitted < kept:
            return f"the ResourceManager keeps {kept} ended applications, and {submitted:.0f} were submitted"
        return ""

    def drivers_places(self, ident: str, ports: range) -> list[DriverPlace]:
        """Behind YARN's proxy, at the address that the ResourceManager tells. Raises UnavailableError."""
        one = application_of(self._object(f"{APPS}/{quote(ident)}", "app"))
        base = one.ui.rstrip("/")
        # An application names its own address; only that of the proxy gets our ticket.
        if one.state != ALIVE or urlsplit(base).path != f"/proxy/{ident}":
            raise UnavailableError(f"{self.place}: {ident} has no tracking URL at YARN's proxy now")
        return [DriverPlace(base, lambda path, answer_s: self._ask_one("GET", base + path, None, answer_s))]

    # ---- the answers

    def _listed(self, tag: str) -> list[Application]:
        # A ResourceManager that does not know the filter shows everything: the tags are compared here once more.
        listed = self._parsed(f"{APPS}?applicationTags={quote(tag)}&deSelects=resourceRequests", tag)
        return sorted(listed, key=lambda one: one.id)

    def _parsed(self, query: str, tag: str = "") -> list[Application]:
        apps = self._object(query, "apps").get("app") or []
        if not isinstance(apps, list):
            raise UnavailableError(f"{self.place}: expected a list of applications, found {type(apps).__name__}")
        return [application_of(app) for app in apps if _tags(app, self.place).issuperset({tag} - {""})]

    def _object(self, path: str, key: str) -> dict[str, Any]:
        url, answer = self._ask("GET", path)
        if answer.status != 200:
            raise UnavailableError(f"{url}: expected 200, found {answer.status} {shown(answer.content)}")
        content = read_json(answer, url)
        if key not in content:
            raise UnavailableError(f'{url}: expected "{key}" in the answer, found {shown(answer.content)}')
        said = content[key]
        if said is not None and not isinstance(said, dict):
            raise UnavailableError(f'{url}: expected an object as "{key}", found {shown(answer.content)}')
        return said or {}

    # ---- the questions

    def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[str, Answer]:
        """The answer of the active ResourceManager, and its address."""
        problems: list[str] = []
        for place in list(self._urls):
            url = place + path
            try:
                answer = self._ask_one(method, url, body)
            except UnavailableError as exc:
                problems.append(str(exc))
                continue
            if _is_standby(answer):
                problems.append(f"{place}: it is on standby")
                continue
            self._urls.remove(place)
            self._urls.insert(0, place)
            return url.partition("?")[0], answer
        raise UnavailableError("; ".join(problems))

    def _ask_one(self, method: str, url: str, body: bytes | None, limit_s: float | None = None) -> Answer:
        headers = {"Content-Type": "application/json", "X-Requested-By": "coordd"} if body is not None else {}
        answer_s = self._answer_s if limit_s is None else limit_s
        answer = request(method, url, headers=headers, body=body, answer_s=answer_s)
        if answer.status == 401 and "negotiate" in answer.headers.get("www-authenticate", "").lower():
            answer = self._with_kerberos(method, url.partition("user.name=")[0].rstrip("?&"), body, answer_s)
        if answer.status in (401, 403):
            raise UnavailableError(
                f"{url.partition('?')[0]}: expected to be let in, found {answer.status}"
                f" ({answer.headers.get('www-authenticate', 'no way to log in is named')}): a valid Kerberos ticket"
                f" is needed (klist), or another user; it says {shown(answer.content)}"
            )
        return answer

    def _with_kerberos(self, method: str, url: str, body: bytes | None, answer_s: float) -> Answer:
        argv = ["curl", "--silent", "--show-error", "--negotiate", "--user", ":", "--request", method]
        argv += ["--max-time", f"{answer_s:g}", "--max-filesize", str(ANSWER_BYTES_MAX)]
        argv += ["--header", "Accept: application/json", "--write-out", "\n%{http_code}"]
        if body is not None:
            argv += ["--header", "Content-Type: application/json", "--header", "X-Requested-By: coordd"]
            argv += ["--data-binary", "@-"]
        try:
            done = subprocess.run(
                [*argv, "--", url], input=body or b"", capture_output=True, env=self._env, timeout=answer_s + 5,
                check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise UnavailableError(f"{url}: it wants Kerberos, for which curl is needed: {exc}") from exc
        content, _, status = done.stdout.rpartition(b"\n")
        if done.returncode or not status.isdigit():
            raise UnavailableError(f"{url}: curl --negotiate: {shown(done.stderr)}")
        return Answer(int(status), {}, content[:ANSWER_BYTES_MAX])

    def _user(self) -> str:
        return self._env.get("HADOOP_USER_NAME") or self._env.get("USER") or "root"


def _is_standby(answer: Answer) -> bool:
    """A ResourceManager on standby redirects, or says so on a page with ``Refresh``."""
    return answer.status in (301, 302, 303, 307, 308) or b"This is standby RM" in answer.content[: http.SHOWN_MAX * 5]


def _tags(app: Any, place: str) -> frozenset[str]:
    if not isinstance(app, dict) or not isinstance(app.get("id"), str):
        raise UnavailableError(f"{place}: expected applications with an id, found {str(app)[:80]!r}")
    said = app.get("applicationTags", "")
    return frozenset([tag.strip() for tag in said.split(",")]) if isinstance(said, str) else frozenset()


def untagged(place: str, named: str) -> dict[str, str]:
    """Why the application that spark-submit has named may be the run's: it is there, and was not found by its tag."""
    return {named: f"{place}: {named}, which spark-submit has named, is there without the run's tag"}


def application_of(app: Mapping[str, Any]) -> Application:
    """An application as the REST interface tells of it."""
    state, final = str(app.get("state", "")).upper(), str(app.get("finalStatus", "")).upper()
    if state == "FINISHED":
        state = FINAL.get(final, ENDED)
    elif state in ("FAILED", "KILLED"):
        state = FINAL[state]
    else:
        state = ALIVE  # also a state that this version does not know: such an application is not launched again
    tags = _tags(app, "")
    marked = _marked(tags)
    detail = redact_text(" ".join(str(app.get("diagnostics") or "").split()))[:DETAIL_MAX]
    return Application(
        id=app["id"],
        state=state,
        run_mark=marked[0],
        token=marked[2],
        attempt=marked[1],
        detail=detail if state != ALIVE else "",
        name=str(app.get("name", ""))[:DETAIL_MAX],
        started_at=_number(app.get("startedTime")) / 1000,
        ended_at=_number(app.get("finishedTime")) / 1000,
        ui=str(app.get("trackingUrl") or "")[:DETAIL_MAX],
    )


def _marked(tags: Sequence[str] | frozenset[str]) -> tuple[str, int, int]:
    """Run mark, attempt and token in the tags."""
    run, attempt, token = "", -1, 0
    for tag in sorted(tags):
        word, _, value = tag.removeprefix(applications.PREFIX).partition("-")
        if not tag.startswith(applications.PREFIX):
            continue
        if word == applications.ATTEMPT and value:
            attempt = applications.number(value, missing=-1)
        elif word == applications.TOKEN and value:
            token = applications.number(value, missing=0)
        elif not value:
            run = tag
    return run, attempt, token


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0
