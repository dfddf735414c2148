"""Applications on Kubernetes: the driver pods with our labels, through the API server."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from coordd.adapters.cluster.http import ANSWER_S, Answer, DriverPlace, read_json, request, shown
from coordd.adapters.cluster.kube_access import Access
from coordd.core.jobs import applications
from coordd.core.jobs.applications import ALIVE, FAILED, KILLED, PREFIX, SUCCEEDED, Application
from coordd.core.redaction import redact_text, telling_line
from coordd.errors import UnavailableError

# The pods of one page, and the maximum number of pages. The drivers of one coordd cluster are far fewer.
PAGE = 500
PAGES_MAX = 100

DETAIL_MAX = 300

# Spark's name for the driver's container.
DRIVER = "spark-kubernetes-driver"

# Details that say nothing. A kubelet gives the log's end as a message only if the pod asks for it; Spark's does not.
SAYS_NOTHING = ("", "Error")

# How much of a failed driver's log is read, and for how long (seconds). The bytes count from the first of these lines.
LOG_LINES = 100
LOG_BYTES = 1024 * 1024
LOG_S = 5.0

# A driver that is told to end has this time (seconds) before its node kills it.
END_S = 30


class Kubernetes:
    """The driver pods of one namespace."""

    kind = "kubernetes"

    def __init__(self, access: Access, *, answer_s: float = ANSWER_S, kept_s: float = 0.0) -> None:
        """``kept_s``: pods that have ended stay at least that long, as the site says; 0.0: nobody says so."""
        self._access = access
        self._answer_s = answer_s
        self._kept_s = kept_s
        self._told: dict[str, str] = {}  # pod -> what its log says
        self._pods = f"/api/v1/namespaces/{quote(access.namespace)}/pods"
        self.place = f"{access.url}, namespace {access.namespace}"

    def find(self, mark: str, known: Collection[str] = (), tokens: Collection[int] = ()) -> list[Application]:
        """All driver pods of a run, also ended ones. Raises UnavailableError: nobody can tell.

        Of the newest one, if it has failed and does not say why, the log is asked.
        """
        found = [one for one in self._listed(f"{PREFIX}run={mark}") if one.run_mark == mark]
        newest = max(found, key=lambda one: (one.token, one.attempt), default=None)
        if newest is None or newest.state != FAILED or newest.detail not in SAYS_NOTHING:
            return found
        if newest.id not in self._told:
            self._told[newest.id] = self._last_words(newest.id)
        detail = ": ".join(word for word in (newest.detail, self._told[newest.id]) if word)
        return [one._replace(detail=detail[:DETAIL_MAX]) if one is newest else one for one in found]

    def of_cluster(self, mark: str) -> list[Application]:
        """All driver pods of a coordd cluster. Raises UnavailableError."""
        return self._listed(f"{PREFIX}{applications.CLUSTER}={mark}")

    def end(self, ident: str) -> None:
        """Ask for the end of a driver; its executors end with it. Raises UnavailableError when that is refused."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": END_S}
        url, answer = self._ask("DELETE", f"{self._pods}/{quote(ident)}", json.dumps(options).encode())
        if answer.status not in (200, 202, 404):
            raise UnavailableError(f"{url}: expected 200 for its end, found {answer.status} {shown(answer.content)}")

    def hidden(self, known: Collection[str] = (), *, ended: bool = False, named: str = "") -> dict[str, str]:
        """Marks are shown as soon as an application is."""
        return {}

    def keeps_since(self, since: float) -> str:
        """Why a driver pod that was made after ``since`` may be gone without a trace; "": it cannot.

        Anybody may delete a pod, and the API does not tell for how long pods are kept.
        """
        if not self._kept_s:
            return "nothing says how long driver pods are kept: [spark] retention of coordd.toml can"
        if time.time() - since > self._kept_s:
            return f"driver pods are kept for {self._kept_s:g} s ([spark] retention), and the submission is older"
        return ""

    def drivers_places(self, ident: str, ports: range) -> list[DriverPlace]:
        """Behind the API server's proxy to the driver's pod. A pod has one driver, so the first port is free."""
        base = f"{self._pods}/{quote(ident)}:{ports.start}/proxy"

        def ask(path: str, answer_s: float) -> Answer:
            answer = self._request("GET", base + path, answer_s=min(self._answer_s, answer_s))
            if answer.status in (401, 403):
                raise UnavailableError(
                    f"{self._access.url}{base}: expected to be let in, found {answer.status}: the account needs the"
                    " verb get on pods/proxy of this namespace"
                )
            return answer

        return [DriverPlace(self._access.url + base, ask)]

    # ---- steps

    def _last_words(self, ident: str) -> str:
        """The line of a driver's log that says most about its failure, redacted; "" if it cannot be read in time. The
        failure itself is certain without it.
        """
        try:
            # A pod template may name the only container otherwise; of several, nobody can tell which is the driver's.
            for container in ({"container": DRIVER}, {}):
                query = {**container, "tailLines": str(LOG_LINES), "limitBytes": str(LOG_BYTES)}
                path = f"{self._pods}/{quote(ident)}/log?{urlencode(query)}"
                answer = self._request("GET", path, answer_s=min(LOG_S, self._answer_s))
                if answer.status != 400:
                    break
        except UnavailableError:
            return ""
        if answer.status in (401, 403):
            return "its driver's log cannot be read, the account needs the verb get on pods/log"
        return telling_line(answer.content.decode(errors="replace").splitlines()) if answer.status == 200 else ""

    def _listed(self, selector: str) -> list[Application]:
        found: list[Application] = []
        following = ""
        for _ in range(PAGES_MAX):
            query = {"labelSelector": selector, "limit": str(PAGE), **({"continue": following} if following else {})}
            url, answer = self._ask("GET", f"{self._pods}?{urlencode(query)}")
            if answer.status != 200:
                raise UnavailableError(f"{url}: expected 200, found {answer.status} {shown(answer.content)}")
            content = read_json(answer, url)
            items, meta = content.get("items"), content.get("metadata") or {}
            if not isinstance(items, list) and not (items is None and content.get("kind") == "PodList"):
                raise UnavailableError(f"{url}: expected a list of pods, found {shown(answer.content)}")
            found += [_application(item, url) for item in items or []]
            following = str(meta.get("continue") or "") if isinstance(meta, dict) else ""
            if not following:
                return sorted([one for one in found if _has(one, selector)], key=lambda one: one.id)
        raise UnavailableError(f"{self.place}: more than {PAGE * PAGES_MAX} driver pods")

    def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[str, Answer]:
        answer = self._request(method, path, body)
        shown_url = (self._access.url + path).partition("?")[0]
        if answer.status in (401, 403):
            raise UnavailableError(
                f"{shown_url}: expected to be let in, found {answer.status}: the account needs the verbs list and"
                f" delete on pods of this namespace; it says {shown(answer.content)}"
            )
        return shown_url, answer

    def _request(self, method: str, path: str, body: bytes | None = None, answer_s: float | None = None) -> Answer:
        url, limit_s = self._access.url + path, self._answer_s if answer_s is None else answer_s
        content = {"Content-Type": "application/json"} if body is not None else {}

        def ask() -> Answer:
            headers = {**self._access.headers(), **content}
            return request(method, url, headers=headers, body=body, tls=self._access.tls, answer_s=limit_s)

        answer = ask()
        return ask() if answer.status == 401 and self._access.is_renewed() else answer


def _has(one: Application, selector: str) -> bool:
    """An API server that does not filter is not believed."""
    key, _, value = selector.partition("=")
    return key != f"{PREFIX}run" or one.run_mark == value


def _application(pod: Any, url: str) -> Application:
    meta = pod.get("metadata") if isinstance(pod, dict) else None
    if not isinstance(meta, dict) or not isinstance(meta.get("name"), str):
        raise UnavailableError(f"{url}: expected pods with a name, found {str(pod)[:80]!r}")
    status, labels = _table(pod.get("status")), _table(meta.get("labels"))
    phase = str(status.get("phase", ""))
    ended = _terminated(status)
    code = ended.get("exitCode")
    if type(code) is int:  # the phase also depends on containers beside the driver's, which admission may put there
        phase = "Failed" if code else "Succeeded"
    # A driver whose phase is Unknown, or new to this version, may live: it must not be launched again.
    state = {"Succeeded": SUCCEEDED, "Failed": FAILED}.get(phase, ALIVE)
    if state == FAILED and meta.get("deletionTimestamp"):
        state = KILLED
    words = [status.get("reason"), status.get("message"), ended.get("reason"), ended.get("message")]
    detail = redact_text(" ".join(" ".join([str(word) for word in words if word]).split()))[:DETAIL_MAX]
    return Application(
        id=meta["name"],
        state=state,
        run_mark=str(labels.get(f"{PREFIX}run", "")),
        token=applications.number(labels.get(f"{PREFIX}{applications.TOKEN}"), missing=0),
        attempt=applications.number(labels.get(f"{PREFIX}{applications.ATTEMPT}"), missing=-1),
        detail=detail if state != ALIVE else "",
        exit_code=code if state != ALIVE and type(code) is int else None,
        name=str(labels.get("spark-app-name", ""))[:DETAIL_MAX],
        started_at=_instant(meta.get("creationTimestamp")),
        ended_at=_instant(ended.get("finishedAt")),
    )


def _table(said: Any) -> dict[str, Any]:
    return said if isinstance(said, dict) else {}


def _terminated(status: Mapping[str, Any]) -> dict[str, Any]:
    """How the driver's container ended; {} while it has not. A pod template may name it otherwise: then it is the only
    one, or nobody can tell which one it is.
    """
    found = status.get("containerStatuses")
    containers = [_table(one) for one in found] if isinstance(found, list) else []
    drivers = [one for one in containers if one.get("name") == DRIVER] or containers
    return _table(_table(drivers[0].get("state")).get("terminated")) if len(drivers) == 1 else {}


def _instant(text: object) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else 0.0
    except ValueError:
        return 0.0
