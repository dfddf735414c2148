"""A sink of outcomes: what `[sink.NAME]` of coordd.toml says, the addresses, and the hook that a sink is.

A sink is a hook that is told of ends of runs only. So its calls are runs too: one for each end, elected, retried with
back-off, and a dead letter when they are given up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec

from coordd.config import values
from coordd.config.hooks.hook import SINK, Hook, call_job, read_timeout
from coordd.core.jobs.job import Job, Retry
from coordd.core.jobs.schedule import parse_duration
from coordd.core.ledger.words import FAILURE, SUCCESS, TERMINAL
from coordd.core.names import NAME
from coordd.core.redaction import HIDDEN, redact_text
from coordd.plugins import SINKS

T = TypeVar("T")

SINKS_MAX = 50
JOB_SINKS_MAX = 20
TRIES_MAX = 100
NAME_MAX = 40

# A call that nobody could make for this long (seconds) is given up: a receiver that hangs holds up those behind it.
WAITS_S = 7 * 86_400.0

# What `on` says -> the states of a run that ended.
ENDS = {SUCCESS: (SUCCESS,), FAILURE: (FAILURE,), "done": tuple(sorted(TERMINAL))}

# The scheme of sinks that packages bring.
PLUGIN = "plugin"

# scheme -> an example, and the parameters after the question mark. Those in one row exclude each other.
SCHEMES: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    "file": ("file:///srv/outcomes.jsonl, or file:///srv/outcomes/ for one file a run", ()),
    "parquet": ("parquet:///srv/outcomes", ()),
    "http": ("http://localhost:8080/outcomes", ()),
    "https": ("https://receiver.example/outcomes", ()),
    "amqp": ("amqp://user@localhost/vhost?queue=outcomes", (("queue",), ("exchange", "routing_key"))),
    "amqps": ("amqps://user@broker/vhost?queue=outcomes", (("queue",), ("exchange", "routing_key"))),
    "redis": ("redis://localhost:6379/0?stream=outcomes", (("stream",), ("hash",))),
    "rediss": ("rediss://host:6379/0?stream=outcomes", (("stream",), ("hash",))),
    PLUGIN: ("plugin://NAME/orders?retries=3, with the NAME of an entry point", ()),
}
ON_DISK = ("file", "parquet")
ON_WEB = ("http", "https")


class SinkHook(Hook, frozen=True):
    """One sink. ``to``: its address. ``jobs``, ``patterns``: whose ends it is told of. ``args``: with the arguments.

    ``attempts``: calls for one end, at most, with ``delay`` before the second, doubled for each further one.
    """

    to: str = ""
    jobs: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()
    args: bool = False
    password_file: str = ""
    tls_ca: str = ""
    attempts: int = 8
    delay: str = "5s"

    @property
    def digest(self) -> str:
        """Of all that it does, not of whose ends it is told."""
        said = (self.on, self.to, self.args, self.password_file, self.token_file, self.tls_ca)
        told = msgspec.json.encode([said, self.timeout, self.attempts, self.delay], order="deterministic")
        return "sink-" + hashlib.sha256(told).hexdigest()[:24]

    @property
    def title(self) -> str:
        """Its name for people."""
        return self.name.removeprefix(SINK)

    def takes(self, event: str, job: object, *, ended: bool) -> bool:
        """True if it is told of this event: the end of a run of one of its jobs."""
        if not ended or not isinstance(job, str) or not self.wants(event):
            return False
        return job in self.jobs or any(fnmatchcase(job, pattern) for pattern in self.patterns)

    def job(self, lease_s: float) -> Job:
        """Its job: each end is one triggered run of it."""
        return call_job(
            "coordd.outcomes",
            {
                "name": self.title, "to": self.to, "timeout_s": self.timeout_s, "password_file": self.password_file,
                "token_file": self.token_file, "tls_ca": self.tls_ca,
            },
            name=self.job_name,
            digest=self.digest,
            description=f"a sink of outcomes: {shown(self.to)}",
            within_s=WAITS_S,
            timeout_s=self.timeout_s + 30.0,  # the call ends itself before
            lease_s=lease_s,
            retry=Retry(attempts=self.attempts, delay_s=parse_duration(self.delay), backoff="exponential"),
            finds_packages=self.to.startswith(f"{PLUGIN}://"),
        )  # fmt: skip


def shown(to: str) -> str:
    """An address for people: the path of one on the web may be a secret, as in the addresses of chats."""
    scheme, mark, rest = to.partition("://")
    if scheme not in ON_WEB:
        return redact_text(to)
    host, slash, path = rest.partition("/")
    return redact_text(f"{scheme}{mark}{host.partition('?')[0]}{slash}") + (HIDDEN if path or "?" in host else "")


def events_of(on: str) -> tuple[str, ...]:
    """The events of what `on` says."""
    return tuple([f"run.{state}" for state in ENDS[on]])


# ---- reading


def read_sinks(table: Any, report: Callable[[str, str], None]) -> tuple[SinkHook, ...]:
    """The sections [sink.NAME]; each problem is reported with its setting."""
    hint = "a table for each sink; [[sink]] is for job files"
    return read_named("sink", table, report, read=_read_section, hint=hint, most=(SINKS_MAX, "sinks"))


def read_named(
    section: str,
    table: Any,
    report: Callable[[str, str], None],
    *,
    read: Callable[[str, str, Mapping[str, Any], Callable[[str, str], None]], T | None],
    hint: str,
    most: tuple[int, str],
) -> tuple[T, ...]:
    """The sections [SECTION.NAME]. ``most``: their number, at most, and what they are. ``read`` gets the setting, the
    name, the table and ``report``; None: it is wrong.
    """
    if not isinstance(table, dict) or not all(isinstance(one, dict) for one in table.values()):
        report(section, f"expected [{section}.NAME], {hint}")
        return ()
    if len(table) > most[0]:
        report(section, f"expected at most {most[0]} {most[1]}, found {len(table)}")
        return ()
    found = [
        read(f"{section}.{values.printable(str(name))[:60]}", str(name), one, report) for name, one in table.items()
    ]
    return tuple([one for one in found if one is not None])


def _read_section(
    section: str, name: str, table: Mapping[str, Any], report: Callable[[str, str], None]
) -> SinkHook | None:
    wrong: list[tuple[str, str]] = []
    said = read_section(section, name, table, _SECTION, wrong)
    if "to" not in table:
        wrong.append((f"{section}.to", f"expected an address, found none; such as {SCHEMES['https'][0]}"))
    scheme = said.get("to", "").partition("://")[0]
    for key, schemes in (
        ("token_file", (*ON_WEB, PLUGIN)),
        ("password_file", ("amqp", "amqps", "redis", "rediss", PLUGIN)),
    ):
        if said.get(key) and scheme and scheme not in schemes:
            wrong.append((f"{section}.{key}", f"{scheme}:// has no use for it"))
    for setting, message in wrong:
        report(setting, message)
    if wrong:
        return None
    on, jobs = said.pop("on", "done"), said.pop("jobs", ("*",))
    return SinkHook(on=events_of(on), name=SINK + name, patterns=jobs, **said)


def read_section(
    section: str, name: str, table: Mapping[str, Any], keys: Mapping[str, values.Reader], wrong: list[tuple[str, str]]
) -> dict[str, Any]:
    """The keys of one section. Problems, also with its name, are added to ``wrong``: setting and sentence."""
    try:
        read_name(name)
    except ValueError as exc:
        wrong.append((section, str(exc)))
    return values.read_table(table, keys, lambda key, message: wrong.append((f"{section}.{key}", message)))


def read_address(value: object) -> str:
    """The address of a sink. Raises ValueError."""
    said = values.text(value)
    scheme, mark, rest = said.partition("://")
    if not mark or scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ValueError(f"expected an address that begins with one of {known}, found {shown(said)!r}")
    example, ways = SCHEMES[scheme]
    wrong = f"such as {example}, found {shown(said)!r}"
    if any(character.isspace() for character in said):
        raise ValueError(f"expected an address without spaces (%20 is one), {wrong}")
    try:
        parts = urlsplit(said)
        port = parts.port
    except ValueError as exc:
        raise ValueError(f"expected an address {wrong}") from exc
    if scheme in ON_DISK:
        if not rest.startswith("/") or rest.strip("/") == "" or "?" in rest or "#" in rest:
            raise ValueError(f"expected an absolute path, {wrong}")
        return said
    if scheme == PLUGIN:
        if not NAME.fullmatch(parts.netloc) or parts.fragment:
            raise ValueError(f"expected the name of an entry point, {wrong}")
        values.brought(parts.netloc, SINKS, "a sink")
        return said
    if not parts.hostname or port == 0 or parts.fragment:
        raise ValueError(f"expected a host, {wrong}")
    if parts.password is not None or (scheme in ON_WEB and parts.username):
        raise ValueError("expected an address without a password: write [sink.NAME] in coordd.toml, with password_file"
                         " (amqp, redis) or token_file (https)")  # fmt: skip
    if ways:
        _check_parameters(parts, ways, wrong)
    return said


def _check_parameters(parts: SplitResult, ways: tuple[tuple[str, ...], ...], wrong: str) -> None:
    given = [name for name, said in parse_qsl(parts.query, keep_blank_values=True) if said or name == "routing_key"]
    fits = [
        way for way in ways if given and way[0] in given and set(given) <= set(way) and len(given) == len(set(given))
    ]
    if not fits:
        listed = " or ".join(["?" + "&".join(f"{name}=…" for name in way) for way in ways])
        raise ValueError(f"expected {listed}, {wrong}")
    path = parts.path.removeprefix("/")
    if parts.scheme.startswith("redis") and path and not path.isdecimal():
        raise ValueError(f"expected the number of a database, {wrong}")
    if parts.scheme.startswith("amqp") and "/" in path:
        raise ValueError(f"expected one vhost (a slash in its name is written %2F), {wrong}")


def read_name(value: object) -> str:
    """The name of a section. Raises ValueError."""
    said = values.name(value)
    if len(said) > NAME_MAX:
        raise ValueError(f"expected a name of at most {NAME_MAX} characters, found {len(said)}")
    return said


def read_delay(value: object) -> str:
    """The time before the second call, as a duration. Raises ValueError."""
    said = f"{value}s" if isinstance(value, int | float) and not isinstance(value, bool) else values.text(value)
    if not 0 < parse_duration(said) <= 3600:
        raise ValueError(f"expected a duration up to an hour, found {values.found(said)}")
    return said


_SECTION: dict[str, values.Reader] = {
    "to": read_address, "on": values.one_of(*ENDS), "args": values.flag, "jobs": values.texts,
    "timeout": read_timeout, "attempts": values.whole(1, TRIES_MAX), "delay": read_delay,
    "password_file": values.path_or_none, "token_file": values.path_or_none, "tls_ca": values.path_or_none,
}  # fmt: skip
