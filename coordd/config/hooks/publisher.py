"""A publisher: what `[publish.NAME]` of coordd.toml says, and the job that it is.

Other processes hand a message to the daemon. Each message is one triggered run of the publisher's job. So the ledger
holds it until a broker has it, whichever node dies meanwhile; retries and dead letters are those of runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from coordd.config import values
from coordd.config.hooks.hook import EVENT_PARAM, call_job, read_timeout
from coordd.config.hooks.sink import (
    ON_WEB,
    PLUGIN,
    SCHEMES,
    TRIES_MAX,
    read_address,
    read_delay,
    read_named,
    read_section,
    shown,
)  # fmt: skip
from coordd.core.jobs.job import HOOK, Job, Retry
from coordd.core.jobs.schedule import parse_duration

# The jobs of publishers are named so.
PUBLISH = f"{HOOK}publish."

PUBLISHERS_MAX = 50
ADDRESSES_MAX = 10

# No address: the record of the message is an event, and listeners to events see it.
EVENTS = "events"

# The parameters of a run's message: an argument has at most 4 KiB, so a longer message is cut into pieces.
PIECES = tuple([f"{EVENT_PARAM}{number}" for number in range(7)])

# The exit code of a call about a message that nobody took within its time.
EXPIRED = 75

# The time of a message that says nothing (seconds), and the longest one. A call finds out that it has passed, since the
# fallback gets the message then. So the ledger lets it wait longer: the message before it may still be between two
# calls, thousands before it each need a call too, and the cluster may be held.
TIME_S = 7 * 86_400.0
WAITS_S = 30 * 86_400.0


class Publisher(msgspec.Struct, frozen=True):
    """One [publish.NAME]. ``to``: addresses, tried in turn with each call. ``owner``: a group that may publish, beside
    operators. ``expires``: how long a message is wanted, unless its sender says; "": TIME_S, and a broker keeps it for
    ever. ``fallback``: a program that gets the message on its stdin when the last call has failed, or its time has
    passed. ``ordered``: one message after the other, as they were accepted; else some at a time.
    """

    name: str
    to: tuple[str, ...]
    owner: str = ""
    expires: str = ""
    fallback: tuple[str, ...] = ()
    ordered: bool = True
    password_file: str = ""
    token_file: str = ""
    tls_ca: str = ""
    timeout: str = "30s"
    attempts: int = 8
    delay: str = "5s"

    @property
    def about(self) -> str:
        """Its addresses, for people."""
        return ", ".join([shown(one) for one in self.to])

    def job(self, lease_s: float, socket: str = "") -> Job:
        """Its job: each message is one triggered run of it. ``socket``: the daemon's, for its program."""
        said = msgspec.to_builtins(msgspec.structs.replace(self, name="", owner=""))
        timeout_s = parse_duration(self.timeout)
        call = said | {"timeout_s": timeout_s}
        job = call_job(
            "coordd.outcomes.message",
            call | {"socket": socket},
            name=PUBLISH + self.name,
            digest="publish-" + hashlib.sha256(json.dumps(call).encode()).hexdigest()[:24],
            description=f"messages of other processes to {self.about}",
            owner=self.owner,
            pieces=PIECES,
            within_s=WAITS_S,
            timeout_s=2 * timeout_s + 30.0,  # the calls, and the fallback, end themselves before
            lease_s=lease_s,
            retry=Retry(
                attempts=self.attempts,
                delay_s=parse_duration(self.delay),
                backoff="exponential",
                never_on_codes=(EXPIRED,),
            ),
        )
        if not self.ordered:
            return job
        # The ledger lets the first one begin when the one before it is over; one that is tried again keeps its place.
        return msgspec.structs.replace(job, overlap="queue", concurrency=None, queue_max=values.SIZE_MAX)


# ---- reading


def read_publishers(table: Any, report: Callable[[str, str], None]) -> tuple[Publisher, ...]:
    """The sections [publish.NAME]; each problem is reported with its setting."""
    hint = "a table for each destination"
    return read_named("publish", table, report, read=_read, hint=hint, most=(PUBLISHERS_MAX, "destinations"))


def _read(section: str, name: str, table: Mapping[str, Any], report: Callable[[str, str], None]) -> Publisher | None:
    wrong: list[tuple[str, str]] = []
    said = read_section(section, name, table, _SECTION, wrong)
    if "to" not in table:
        wrong.append((f"{section}.to", f"expected an address, or a list of them, found none: {SCHEMES['amqps'][0]}"))
    for setting, message in wrong:
        report(setting, message)
    return None if wrong else Publisher(name, **said)


def _addresses(value: object) -> tuple[str, ...]:
    found = values.texts(value) if isinstance(value, list) else (values.text(value),)
    if not 1 <= len(found) <= ADDRESSES_MAX:
        raise ValueError(f"expected 1 to {ADDRESSES_MAX} addresses, found {len(found)}")
    if found == (EVENTS,):
        return found
    for one in found:
        read_address(one)
        scheme, _, rest = one.partition("://")
        if scheme in ("parquet", PLUGIN) or (scheme == "file" and rest.endswith("/")) or "?hash=" in one:
            expected = f'a queue, an exchange, a stream, {ON_WEB[1]}:// or a file, or "{EVENTS}"'
            raise ValueError(f"expected {expected}, found {shown(one)!r}: what is there has room for ends of runs only")
    return found


def read_expires(value: object) -> str:
    """How long a message is wanted, as a duration. Raises ValueError."""
    said = values.text(value)
    if not 0 < parse_duration(said) <= TIME_S:
        raise ValueError(f"expected a duration up to 7d, found {values.found(said)}")
    return said


_SECTION: dict[str, values.Reader] = {
    "to": _addresses, "owner": values.text, "expires": read_expires, "fallback": values.program,
    "ordered": values.flag, "timeout": read_timeout, "attempts": values.whole(1, TRIES_MAX), "delay": read_delay,
    "password_file": values.path_or_none, "token_file": values.path_or_none, "tls_ca": values.path_or_none,
}  # fmt: skip
