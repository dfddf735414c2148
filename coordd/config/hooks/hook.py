"""The hooks of coordd.toml: reading them, and the job that each of them is.

A hook is a job that no file has, and each event is one triggered run of it. So the ledger, the elections, leases,
retries and dead letters of runs serve hooks too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from coordd.config import values
from coordd.config.hooks.events import ALL_OF, EVENTS, LINEAGE_START
from coordd.core.jobs.arguments import nearest
from coordd.core.jobs.job import HOOK, Command, Concurrency, Job, Retry
from coordd.core.jobs.schedule import parse_duration

HOOKS_MAX = 50
TIMEOUT_MAX_S = 3600.0

# A run of a hook: three tries, with 5 s and 10 s between them. After a day without a first try, it is given up.
TRIES = 3
DELAY_S = 5.0
WITHIN_S = 86_400.0

# How many calls of one hook are made at a time, in the cluster.
AT_A_TIME = 4

# The variables of a call: what to call (an address may be a secret, so the name says so), and the event.
CALL_VARIABLE, EVENT_VARIABLE = "COORDD_HOOK_SECRET", "COORDD_EVENT"
EVENT_PARAM = "event"

# The receiver of lineage has this name; what it is told of.
LINEAGE = "openlineage"
LINEAGE_EVENTS = (LINEAGE_START, "run.success", "run.failure", "run.revoked")
# Also of a run that has ended as lost; of an attempt that was lost and is tried again, not. It is not in the list, from
# which its definition is made: nodes of versions before would hold the receiver for another one.
LINEAGE_LOST = "run.lost"

# The names of sinks begin so.
SINK = "sink."

_CALL = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
# Names of digits are for runs of `coordd exec`: hook~1000.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,58}", re.ASCII)


class Hook(msgspec.Struct, frozen=True):
    """One [[hook]]: exactly one of ``argv``, ``url`` and ``call`` is set. ``on``: events, or ``run.*``.

    ``namespace``: not a hook of the site, but the receiver of lineage: it gets OpenLineage's events of that namespace.
    ``token_file``: what it holds goes with a call, as a bearer token.
    """

    on: tuple[str, ...]
    argv: tuple[str, ...] = ()
    url: str = ""
    call: str = ""
    timeout: str = "30s"
    name: str = ""
    namespace: str = ""
    token_file: str = ""

    @property
    def by(self) -> str:
        """What asks for its runs."""
        return "hook"

    @property
    def timeout_s(self) -> float:
        return parse_duration(self.timeout)

    def takes(self, event: str, job: object, *, ended: bool) -> bool:
        """True if it is called for this event, about this job. ``ended``: a run's row has ended so."""
        if self.namespace and event == LINEAGE_LOST:
            return ended
        return self.wants(event)

    @property
    def job_name(self) -> str:
        """The job that it is. Without a name of its own it is named after what it does."""
        return HOOK + (self.name or "x" + self.digest[:8])

    @property
    def digest(self) -> str:
        """Of all that it does; equal on all nodes with the same lines."""
        said: list[Any] = [self.on, self.argv, self.url, self.call, self.timeout]
        if self.namespace:
            said += [self.namespace, self.token_file]
        told = msgspec.json.encode(said, order="deterministic")
        return "hook-" + hashlib.sha256(told).hexdigest()[:24]

    def wants(self, event: str) -> bool:
        """True if it is called for this event."""
        if self.namespace and event == LINEAGE_LOST:
            return True
        return any(event == word or (word.endswith(".*") and event.startswith(word[:-1])) for word in self.on)

    def job(self, lease_s: float) -> Job:
        """Its job. The definition is known by the digest, whichever Python runs it on a node."""
        say = {"argv": self.argv, "url": self.url, "call": self.call, "timeout_s": self.timeout_s}
        if self.namespace:
            say |= {"lineage": True, "token_file": self.token_file}
        return call_job(
            "coordd.services.hooks.call",
            say,
            name=self.job_name,
            digest=self.digest,
            description=f"{'[lineage]' if self.namespace else 'a hook'} of coordd.toml, called on {', '.join(self.on)}",
            within_s=WITHIN_S,
            timeout_s=self.timeout_s + 30.0,  # the call ends itself before
            lease_s=lease_s,
            retry=Retry(attempts=TRIES, delay_s=DELAY_S, backoff="exponential"),
        )


def call_job(
    module: str,
    call: Mapping[str, Any],
    *,
    name: str,
    digest: str,
    description: str,
    within_s: float,
    timeout_s: float,
    lease_s: float,
    retry: Retry,
    owner: str = "",
    pieces: tuple[str, ...] = (EVENT_PARAM,),
    finds_packages: bool = False,
) -> Job:
    """The job whose runs run ``module`` with what it is to do, and with an event: the parameters ``pieces``, one after
    the other. ``finds_packages``: where the daemon finds them.
    """
    found = {"PYTHONPATH": os.environ["PYTHONPATH"]} if finds_packages and "PYTHONPATH" in os.environ else {}
    return Job(
        name=name,
        digest=digest,
        launch=Command(
            argv=(sys.executable, "-m", module),
            env={
                **{name: _literal(said) for name, said in found.items()},
                CALL_VARIABLE: _literal(json.dumps(call)),
                EVENT_VARIABLE: "".join([f"{{{piece}}}" for piece in pieces]),
            },
        ),
        description=description,
        owner=owner,
        params=dict.fromkeys(pieces, ""),
        overlap="allow",
        concurrency=Concurrency(max=AT_A_TIME),
        start_within_s=within_s,
        timeout_s=timeout_s,
        lease_s=lease_s,
        retry=retry,
    )


def _literal(text: str) -> str:
    """As a template that becomes this text."""
    return text.replace("{", "{{").replace("}", "}}")


def of_lineage(url: str, namespace: str, token_file: str) -> Hook:
    """The receiver of lineage, called as hooks are."""
    return Hook(on=LINEAGE_EVENTS, url=url, name=LINEAGE, namespace=namespace, token_file=token_file)


def jobs_of(hooks: Iterable[Hook], lease_s: float) -> dict[str, Job]:
    """The jobs of these hooks, by name."""
    return {hook.job_name: hook.job(lease_s) for hook in hooks}


# ---- reading


def read_hooks(table: Any, report: Callable[[str], None]) -> tuple[Hook, ...]:
    """The hooks; each problem is reported in a sentence."""
    if not isinstance(table, list) or not all(isinstance(one, dict) for one in table):
        report("expected [[hook]], a list of tables: two brackets on each side")
        return ()
    if len(table) > HOOKS_MAX:
        report(f"expected at most {HOOKS_MAX} hooks, found {len(table)}")
        return ()
    found: list[Hook] = []
    for number, one in enumerate(table, 1):
        hook = _read(one, number, report)
        if hook is not None and hook.job_name in {other.job_name for other in found}:
            report(f'hook {number}: name: there is another hook "{hook.job_name.removeprefix(HOOK)}"')
        elif hook is not None:
            found.append(hook)
    return tuple(found)


def _read(table: Mapping[str, Any], number: int, report: Callable[[str], None]) -> Hook | None:
    wrong: list[tuple[str, str]] = []
    said = values.read_table(table, _READERS, lambda key, message: wrong.append((key, message)))
    ways = [key for key in ("argv", "url", "call") if key in table]
    if not wrong and len(ways) != 1:
        wrong.append(("argv", f"expected one of argv, url and call, found {' and '.join(ways) or 'none'}"))
    if not wrong and not said.get("on"):
        wrong.append(("on", f"expected a list of events, found none; known: {', '.join(EVENTS)}"))
    if said.get("name") == LINEAGE:
        wrong.append(("name", f'"{LINEAGE}" is the name of [lineage]; choose another'))
    if said.get("name", "").startswith(SINK):
        wrong.append(("name", f'names with "{SINK}" at the front are those of sinks; choose another'))
    for key, message in wrong:
        report(f"hook {number}: {key}: {message}")
    return None if wrong else Hook(**said)


def _on(value: object) -> tuple[str, ...]:
    words = values.texts(value)
    for word in words:
        if word not in ALL_OF and word not in EVENTS:
            raise ValueError(f"expected events, found {values.found(word)}; {nearest(word, (*EVENTS, *ALL_OF))}")
    return words


def _url(value: object) -> str:
    said = values.text(value)
    if any(character.isspace() for character in said):  # an address may be a secret, so it is not shown
        raise ValueError("expected an address without spaces: %20 is one")
    parts = urlsplit(said)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected an address such as https://chat.example/hook")
    return said


def read_lineage_url(value: object) -> str:
    """The address of a receiver of lineage, or "". Raises ValueError."""
    return _url(value) if values.text(value) else ""


def read_timeout(value: object) -> str:
    """How long a call may take, as a duration. Raises ValueError."""
    said = f"{value}s" if isinstance(value, int | float) and not isinstance(value, bool) else values.text(value)
    if not 0 < parse_duration(said) <= TIMEOUT_MAX_S:
        raise ValueError(f"expected a duration up to {TIMEOUT_MAX_S:g} s, found {values.found(said)}")
    return said


_READERS: dict[str, values.Reader] = {
    "on": _on, "argv": values.program, "url": _url, "timeout": read_timeout,
    "call": values.like(_CALL, "package.module:function"),
    "name": values.like(_NAME, "a letter and up to 58 of A-Z a-z 0-9 . _ -"),
}  # fmt: skip
