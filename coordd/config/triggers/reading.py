"""Reading the triggers of a job file. A problem names the trigger's number, the key, and what was expected."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Container, Iterable, Mapping
from typing import Any, Protocol

from coordd.config import addresses, values
from coordd.config.hooks.events import ALL_OF, CHECK_EVENTS, EVENTS, NODE_EVENTS
from coordd.config.sections import Config
from coordd.config.values import found
from coordd.core.jobs.arguments import nearest
from coordd.core.jobs.job import Job
from coordd.core.jobs.schedule import parse_duration
from coordd.core.jobs.trigger import (
    AMQP,
    BEARER,
    COMMAND,
    EVENT,
    FIELDS,
    FIELDS_PLUGGED,
    FILE,
    HMAC,
    HTTP,
    IN_BODY,
    KEY_BODY,
    KEY_ID,
    KINDS,
    PART,
    REDIS,
    SQL,
    WITH_BODY,
    Trigger,
)
from coordd.core.triggers.files import MARGIN_S
from coordd.plugins import TRIGGERS

TRIGGERS_MAX = 20
JOBS_MAX = 100

# How often one looks (seconds), and how long a look may take.
EVERY_MIN_S, EVERY_MAX_S = 1.0, 86_400.0
SETTLE_MAX_S = 86_400.0
TIMEOUT_MAX_S = 300.0

# Open runs of one trigger: the ledger's rows of a job are read to count them.
OPEN_MAX = 20_000
# Unless the job file says otherwise, for jobs whose runs do not exclude each other.
OPEN_USUAL = 100

# Events that are never about a job, and those that may be: nobody is asked for a job.
_OF_NODES = (*NODE_EVENTS, "cluster.ready")
_OF_ANY = (*_OF_NODES, "breaker.opened", *CHECK_EVENTS)

# Job files are shown to people.
WITHOUT = "expected a URL without a password: write it to a file, and name that as password_file"

# The warning about a route that nobody can call on this node.
DEAF = "this node hears no calls: [triggers] listen of coordd.toml is empty"

# The warning about tokens that others on the network can read, and use.
IN_CLEAR = (
    "[triggers] listen = {listen} of coordd.toml is without TLS, and others on the network read the bearer token of"
    ' each call: set [triggers] tls = true, or auth = "hmac", or listen on 127.0.0.1 behind a proxy with TLS'
)

# A file trigger with a shorter history (seconds): files are refused a day before the ledger may forget their runs.
KEEP_LEAST_S = 3 * MARGIN_S
_EXPECTED = "expected at least 3d in [history] keep of coordd.toml beside a file trigger, found {keep}: "
TAKES_NONE = _EXPECTED + "every file would be refused as older than that less one day"
TAKES_FEW = _EXPECTED + "a file that waits for longer than that less one day is refused"

_IN_BODY = re.compile(r"trigger\.body\.[^{}]{1,64}")
_ROUTE = re.compile(r"(?:/[A-Za-z0-9._~-]{1,64}){1,8}", re.ASCII)
_USER = r"(?:\?user\.name=[A-Za-z0-9._@-]{1,64})?"
_HDFS = re.compile(r"s?webhdfs://[A-Za-z0-9.:,_-]{1,500}(/[^?#\x00]{1,1000})" + _USER)
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}", re.ASCII)
_QUEUE = re.compile(r"[!-~]{1,200}")
_QUERY = re.compile(r"[^\0;]{1,4000};?\s*")
_KEY = re.compile(rf"{KEY_ID}|{KEY_BODY}|{re.escape(IN_BODY)}[^{{}}]{{1,64}}")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}", re.ASCII)


class Report(Protocol):
    """Tells a person of a problem."""

    def __call__(self, key: str, message: str, *, warning: bool = False) -> None: ...


def read_triggers(
    tables: list[dict[str, Any]], job: Mapping[str, Any], name: str, report: Report, config: Config
) -> tuple[Trigger, ...]:
    """The triggers of a job file. ``job``: its other keys, as read. ``report``: (key, problem)."""
    if len(tables) > TRIGGERS_MAX:
        report("trigger", f"expected at most {TRIGGERS_MAX} triggers, found {len(tables)}")
        return ()
    triggers: list[Trigger] = []
    for number, table in enumerate(tables, 1):
        one = _Reading(number, table, job, report, insecure=config.cluster.allow_insecure).trigger(name)
        if one is not None and one.name in [other.name for other in triggers]:
            report("trigger.name", f'trigger {number}: there is another trigger "{one.name}": give each a name')
        elif one is not None:
            triggers.append(one)
    if any(one.kind == HTTP for one in triggers) and not config.triggers.listen:
        report("trigger.route", DEAF, warning=True)
    if lost := _rejected(len(triggers), job):
        report("trigger", lost, warning=True)
    listen, keep_s = config.triggers, config.history.keep_s
    is_far = bool(listen.listen) and not addresses.is_loopback(listen.address[0])
    if is_far and not listen.tls and any(one.kind == HTTP and one.auth == BEARER for one in triggers):
        report("trigger.auth", IN_CLEAR.format(listen=listen.listen), warning=True)
    if any(one.kind == FILE for one in triggers) and keep_s < KEEP_LEAST_S:
        none = keep_s <= MARGIN_S
        report("trigger.kind", (TAKES_NONE if none else TAKES_FEW).format(keep=config.history.keep), warning=not none)
    return tuple(triggers)


def _rejected(triggers: int, job: Mapping[str, Any]) -> str:
    """A sentence about arrivals that others of the job may push out; "" if none can be."""
    overlap = job.get("overlap", "forbid")
    beside = "a trigger beside the schedule" if "schedule" in job else f"{triggers} triggers"
    if overlap not in ("forbid", "queue") or triggers + ("schedule" in job) < 2 or not triggers:
        return ""
    full = "while another run of the job is active" if overlap == "forbid" else "while queue_max runs wait"
    return (
        f'expected overlap = "allow" with max_open, or one trigger alone, found {beside} and overlap = "{overlap}":'
        f" nodes do not count together, so an arrival that comes {full} may be rejected, and is then consumed"
    )


class _Reading:
    """One [[trigger]]."""

    def __init__(
        self, number: int, table: Mapping[str, Any], job: Mapping[str, Any], report: Report, *, insecure: bool
    ) -> None:
        self._number = number
        self._table = table
        self._job = job
        self._report = report
        self._insecure = insecure
        self._failed = False

    def wrong(self, key: str, message: str) -> None:
        self._failed = True
        self._report(f"trigger.{key}", f"trigger {self._number}: {message}")

    def trigger(self, job: str) -> Trigger | None:
        kind = self._table.get("kind")
        if not isinstance(kind, str) or not kind:
            self.wrong("kind", f"expected one of {', '.join(KINDS)}; found {found(kind) if kind else 'nothing'}")
            return None
        plugged = kind not in KINDS
        if plugged:
            try:
                values.brought(kind, TRIGGERS, "a kind of trigger", *KINDS)
            except ValueError as exc:
                self.wrong("kind", str(exc))
                return None
        needed, others = _KEYS.get(kind, _PLUGGED)
        readers = {key: _READERS[key] for key in ("kind", "name", "args", *needed, *others)}
        if plugged:
            readers |= {"path": values.text, "argv": values.texts, "query": values.text}
        said = values.read_table(self._table, readers, self.wrong)
        for key in needed:
            if key not in self._table:
                self.wrong(key, f"expected {key} in a trigger of the kind {kind}, found nothing")
        self._arguments(kind, said.get("args", {}))
        if kind == EVENT:
            self._events(said, job)
        if (kind == COMMAND or plugged) and self._job.get("run_as"):
            self.wrong("kind", "it runs as the daemon's user: a job with run_as may not bring one")
        fields = {_FIELDS.get(key, key): value for key, value in said.items()}
        if kind in (AMQP, REDIS):
            fields.setdefault("every_s", QUEUE_EVERY_S)
        if kind in _SCHEMES and fields.get("url"):
            self._address(fields["url"], kind)
        if plugged and addresses.has_password(fields.get("url", "")):
            self.wrong("url", WITHOUT)
        most = self._open(kind, said.get("max_open"))
        return None if self._failed else Trigger(**{"name": kind, **fields, "max_open": most})

    def _arguments(self, kind: str, args: Mapping[str, str]) -> None:
        params = self._job.get("params", {})
        for param, text in args.items():
            if param not in params:
                self.wrong("args", f'"{param:.60}" is not declared under params: {nearest(param, params)}')
            problem = template_problem(text, kind)
            if problem:
                self.wrong("args", f"{param:.60}: {problem}")

    def _events(self, said: Mapping[str, Any], job: str) -> None:
        about_runs = [event for event in said.get("on", ()) if event not in _OF_ANY]
        if about_runs and not said.get("jobs"):
            self.wrong("jobs", f'"{about_runs[0]}" is about runs of jobs: expected jobs = ["NAME"], found nothing')
        if said.get("jobs") and said.get("on") and all(event in _OF_NODES for event in said["on"]):
            self.wrong("jobs", f'"{said["on"][0]}" is about no job: leave jobs out')
        if job in said.get("jobs", ()):
            self.wrong("jobs", "a job cannot be started by its own runs: it would go on for ever")

    def _address(self, url: str, kind: str) -> None:
        """The password has a file of its own: job files are shown to people."""
        try:
            addresses.check(url, _SCHEMES[kind])
            if addresses.has_password(url):
                raise ValueError(WITHOUT)
            if not self._insecure and (why := addresses.insecure(url)):
                raise ValueError(f"{why[0]}; set [cluster] allow_insecure = true to accept that")
        except ValueError as exc:
            self.wrong("url", str(exc))
        if self._job.get("run_as") and url.startswith("sqlite:"):
            self.wrong("url", "a file of SQLite is read as the daemon's user: a job with run_as may not name one")

    def _open(self, kind: str, said: int | None) -> int:
        """How many of its runs may be open, so that none of them is rejected."""
        overlap = self._job.get("overlap", "forbid")
        alone = overlap in ("forbid", "replace")
        queue = self._job.get("queue_max", OPEN_USUAL)
        if said is None:
            return 1 if alone else min(OPEN_USUAL, queue) if overlap == "queue" else OPEN_USUAL
        if alone and said > 1:
            self.wrong(
                "max_open",
                f'max_open above 1 needs overlap = "allow" or "queue": with "{overlap}" one run of the job is in the'
                " way of another",
            )
        if overlap == "queue" and said > queue:
            self.wrong("max_open", f"expected at most queue_max ({queue}), found {said}: the others would be rejected")
        return said


def template_problem(text: str, kind: str) -> str:
    """The problem of a value of args, or ""."""
    known = [f"trigger.{field}" for field in FIELDS.get(kind, FIELDS_PLUGGED)]
    with_body = kind in WITH_BODY or kind not in KINDS
    for match in PART.finditer(text):
        name = match.group(1)
        if name is None and match.group() in "{}":
            return f'a single "{match.group()}" in "{text:.60}"; write {{{{ and }}}} for braces'
        if name is not None and name not in known and not (with_body and _IN_BODY.fullmatch(name)):
            near = nearest(f"trigger.{name.removeprefix('trigger.')}", known)
            return f'"{{{name:.60}}}" in "{text:.60}" is not a value of this kind of trigger; {near}'
    return ""


def cycles(jobs: Mapping[str, Job]) -> dict[str, str]:
    """The jobs whose runs would start each other for ever: job -> the circle."""
    parents = {
        name: {parent for one in job.triggers for parent in one.jobs} | set(job.after.jobs if job.after else ())
        for name, job in jobs.items()
    }
    after = {name: sorted(of & jobs.keys()) for name, of in parents.items()}
    started = [name for name, job in jobs.items() if any(one.jobs for one in job.triggers)]
    return {name: circle for name in started if (circle := _circle(name, after))}


def _circle(start: str, after: Mapping[str, Iterable[str]]) -> str:
    """The shortest way from a job back to itself; "" if there is none."""
    came: dict[str, str] = {}
    line = [start]
    for job in line:
        for parent in after.get(job, ()):
            if parent == start:
                way = [job]
                while way[-1] != start:
                    way.append(came[way[-1]])
                return " → ".join([start, *way])
            if parent not in came:
                came[parent] = job
                line.append(parent)
    return ""


def problems(jobs: Mapping[str, Job]) -> list[tuple[str, str, str, bool]]:
    """What contradicts between jobs: (key, job, sentence, and whether the job cannot be used)."""
    found = [
        ("trigger.jobs", name, f"its trigger, and those of other jobs, would start runs for ever: {circle}", True)
        for name, circle in cycles(jobs).items()
    ]
    found += [("trigger.route", name, said, True) for name, said in same_routes(jobs).items()]
    return found + [
        ("trigger.jobs", name, f'there is no job "{parent}" here; {nearest(parent, jobs)}', False)
        for name, job in jobs.items()
        for parent in absent(job, jobs)
    ]


def same_routes(jobs: Mapping[str, Job]) -> dict[str, str]:
    """The jobs of which a route is also another one's: job -> a sentence."""
    users: dict[str, list[str]] = {}
    for name, job in sorted(jobs.items()):
        for one in job.triggers:
            if one.kind == HTTP:
                users.setdefault(one.route, []).append(name)
    return {
        name: f'the route "{route}" is used more than once: by {", ".join(sorted(set(names)))}'
        for route, names in users.items()
        if len(names) > 1
        for name in names
    }


def absent(job: Job, jobs: Container[str]) -> list[str]:
    """The jobs whose runs start this one, and that this node does not have."""
    return sorted({parent for one in job.triggers for parent in one.jobs if parent not in jobs})


# ---- single values


def _name(value: object) -> str:
    said = values.text(value)
    if not _NAME.fullmatch(said):
        raise ValueError(f"expected a letter and up to 39 of A-Z a-z 0-9 _ -, found {found(said)}")
    return said


def _seconds(least: float, most: float) -> values.Reader:
    def read(value: Any) -> float:
        seconds = parse_duration(value)
        if not least <= seconds <= most:
            raise ValueError(f"expected a duration from {least:g} to {most:g} s, found {found(value)}")
        return seconds

    return read


def _pattern(value: object) -> str:
    """An absolute path with wildcards. The part before the first wildcard is the directory that files must be in."""
    said = url = values.text(value)
    if "://" in url:
        match = _HDFS.fullmatch(url)
        if match is None:
            raise ValueError(
                "expected an absolute path, or webhdfs://HOST[:PORT][,HOST…]/PATH with * and […] in names, and"
                f" ?user.name=USER at its end, found {found(url)}"
            )
        said = match[1]
    values.path(said)
    if posixpath.normpath(said) != said or said.startswith("//"):
        raise ValueError(f'expected a path without "..", "//" and a final "/", found {found(said)}')
    if "**" in said:
        raise ValueError(f'expected * for one name: "**" would search whole trees, found {found(said)}')
    if any(wild in said.split("/")[1] for wild in "*?["):
        raise ValueError(f"expected a directory before the first wildcard, found {found(said)}")
    if len(said.split("/")) < 3:
        raise ValueError(f"expected a directory and a name or pattern in it, found {found(said)}")
    return url


def _on(value: object) -> tuple[str, ...]:
    events = (values.text(value),) if isinstance(value, str) else values.texts(value)
    if not events:
        raise ValueError(f"expected the name of an event, found nothing; known: {', '.join(EVENTS)}")
    for event in events:
        if event not in EVENTS and event not in ALL_OF:
            raise ValueError(f"expected events, found {found(event)}; {nearest(event, (*EVENTS, *ALL_OF))}")
    return tuple(dict.fromkeys([one for event in events for one in ALL_OF.get(event, (event,))]))


def _jobs(value: object) -> tuple[str, ...]:
    names = (values.text(value),) if isinstance(value, str) else values.texts(value)
    if len(names) > JOBS_MAX:
        raise ValueError(f"expected at most {JOBS_MAX} jobs, found {len(names)}")
    return tuple([values.name(one) for one in names])


_READERS: dict[str, values.Reader] = {
    "kind": values.text,  # known by now
    "name": _name,
    "args": values.text_table,
    "path": _pattern,
    "settle": _seconds(0.0, SETTLE_MAX_S),
    "every": _seconds(EVERY_MIN_S, EVERY_MAX_S),
    "timeout": _seconds(0.1, TIMEOUT_MAX_S),
    "argv": values.program,
    "route": values.like(_ROUTE, "a path such as /orders, of letters, digits and . _ ~ -"),
    "secret_file": values.path,
    "auth": values.one_of(BEARER, HMAC),
    "key_header": values.like(_HEADER, "the name of a header"),
    "url": values.text,
    "password_file": values.path,
    "queue": values.like(_QUEUE, "a name without spaces, of up to 200 visible ASCII characters"),
    "stream": values.like(_QUEUE, "a name without spaces, of up to 200 visible ASCII characters"),
    "query": values.like(_QUERY, "one query of up to 4,000 characters"),
    "key": values.like(_KEY, '"id", "body", or "body.NAME" with the name of a field'),
    "on": _on,
    "jobs": _jobs,
    "max_open": values.whole(1, OPEN_MAX),
}

# Of each kind: the keys that it needs, and the others that it may have.
_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    FILE: (("path",), ("settle", "every", "max_open")),
    COMMAND: (("argv",), ("timeout", "every", "max_open")),
    HTTP: (("route", "secret_file"), ("auth", "key_header", "max_open")),
    SQL: (("url", "query"), ("password_file", "timeout", "every", "max_open")),
    AMQP: (("url", "queue"), ("password_file", "key", "every", "max_open")),
    REDIS: (("url", "stream"), ("password_file", "key", "every", "max_open")),
    EVENT: (("on",), ("jobs",)),
}

# Of a kind that a package brings.
_PLUGGED: tuple[tuple[str, ...], tuple[str, ...]] = (
    (),
    ("url", "path", "query", "argv", "password_file", "timeout", "every", "max_open"),
)

# How often a queue is looked at, unless the job file says it (seconds).
QUEUE_EVERY_S = 1.0

_SCHEMES = {SQL: ("sqlite", "postgresql"), AMQP: ("amqp", "amqps"), REDIS: ("redis", "rediss")}

_FIELDS = {"settle": "settle_s", "every": "every_s", "timeout": "timeout_s"}
