"""A trigger of a job: what starts runs beside the schedule and people. Frozen, and part of the job's definition."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import msgspec

from coordd.core.redaction import redact_text

FILE, HTTP, AMQP, REDIS, SQL, COMMAND, EVENT = "file", "http", "amqp", "redis", "sql", "command", "event"
KINDS = (FILE, HTTP, AMQP, REDIS, SQL, COMMAND, EVENT)

# How a caller of an HTTP trigger proves who it is.
BEARER, HMAC = "bearer", "hmac"

# Kinds whose arrivals have a document, with {trigger.body.NAME}.
WITH_BODY = (HTTP, AMQP, REDIS, SQL)

# One elected node looks for arrivals.
POLLED = (FILE, AMQP, REDIS, SQL, COMMAND)

# Which part of a message is its key: what its sender or its server calls it, all of it, or a field of its document.
KEY_ID, KEY_BODY, IN_BODY = "id", "body", "body."

# The values that an arrival of each kind has, as {trigger.NAME} in args.
FIELDS: dict[str, tuple[str, ...]] = {
    FILE: ("key", "path", "name", "dir", "size"),
    COMMAND: ("key",),
    HTTP: ("key",),
    AMQP: ("key",),
    REDIS: ("key",),
    SQL: ("key",),
    EVENT: ("key", "event", "job", "run", "state", "node"),
}
# Of a kind that a package brings.
FIELDS_PLUGGED = ("key",)

# A template: braces, or the name of a value.
PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class Trigger(msgspec.Struct, frozen=True):
    """One [[trigger]]. Durations in seconds; fields that its kind does not use have their defaults.

    ``path``: a pattern. ``settle_s``: a file is complete if it has not changed for this long. ``on``: names of events,
    of these ``jobs`` if they are about runs. ``route``: the path of the calls. ``max_open``: arrivals wait while the
    job has this many open runs. ``url``: of the server that a ``queue``, ``stream`` or ``query`` is for, without a
    password. ``key``: which part of a message it is known by.
    """

    kind: str
    name: str
    args: dict[str, str] = {}
    path: str = ""
    settle_s: float = 2.0
    argv: tuple[str, ...] = ()
    timeout_s: float = 30.0
    on: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    route: str = ""
    secret_file: str = ""
    auth: str = BEARER
    key_header: str = "Idempotency-Key"
    every_s: float = 10.0
    max_open: int = 1
    url: str = ""
    password_file: str = ""
    queue: str = ""
    stream: str = ""
    query: str = ""
    key: str = KEY_ID

    @property
    def plugged(self) -> bool:
        """True if a package brings its kind."""
        return self.kind not in KINDS

    @property
    def polled(self) -> bool:
        """True if one elected node looks for its arrivals."""
        return self.kind in POLLED or self.plugged

    @property
    def digest(self) -> str:
        """Of all that it says; equal on all nodes with the same lines."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:24]

    @property
    def about(self) -> str:
        """What it waits for, for people."""
        if self.kind == EVENT:
            return ", ".join(self.on) + (f" of {', '.join(self.jobs)}" if self.jobs else "")
        if self.kind == HTTP:
            return f"POST {self.route}"
        if self.kind in (AMQP, REDIS):
            return f"{self.queue or self.stream} at {redact_text(self.url)}"
        if self.kind == SQL:
            return f"{self.query} at {redact_text(self.url)}"
        if self.plugged:
            return " ".join([self.kind, *filter(None, (self.path, redact_text(self.url), self.query, *self.argv))])
        return self.path or " ".join(self.argv)


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with each {trigger.NAME} replaced. Raises KeyError for a name that the arrival does not have."""

    def part(match: re.Match[str]) -> str:
        name = match.group(1)
        return match.group()[0] if name is None else values[name.removeprefix("trigger.")]

    return PART.sub(part, text)
