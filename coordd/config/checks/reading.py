"""Reads ``[[check]]``: of coordd.toml, and of a job's file, where a text names one of coordd.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from coordd.config import values
from coordd.config.values import found
from coordd.core.checks.check import (
    AMQP,
    BUS,
    CLUSTER,
    COMMAND,
    DISK,
    HTTP,
    KINDS,
    LEDGER,
    LOAD,
    MEMORY,
    NODE,
    REACTIONS,
    REDIS,
    REPORT,
    SPARK_MASTER,
    SUSPEND,
    TAG,
    TCP,
    Check,
    Use,
)
from coordd.core.jobs.arguments import nearest
from coordd.core.redaction import holds_password
from coordd.plugins import CHECKS

# Checks of coordd.toml, and of one job.
CHECKS_MAX = 100
OF_JOB_MAX = 20

EVERY_MIN_S, EVERY_MAX_S = 1.0, 86_400.0
# One node tells the others through the ledger, and they read it every few seconds.
SHARED_EVERY_MIN_S = 5.0
TIMEOUT_MIN_S, TIMEOUT_MAX_S = 0.1, 300.0
IN_A_ROW_MAX = 100

# What each kind looks at: the key that it needs.
TARGETS = {HTTP: "url", TCP: "address", COMMAND: "argv", DISK: "path", SPARK_MASTER: "url", AMQP: "url", REDIS: "url"}
SCHEMES = {
    HTTP: ("http", "https"),
    SPARK_MASTER: ("http", "https", "spark"),
    AMQP: ("amqp", "amqps"),
    REDIS: ("redis", "rediss"),
}

# These look at this machine: another node's result says nothing about it.
OF_MACHINE = (MEMORY, LOAD, BUS, LEDGER)

# These measure nothing.
UNMEASURED = (COMMAND, REPORT, BUS, LEDGER)

# Of these less is worse.
ROOM = (DISK, MEMORY)


def read_checks(table: Any, report: Callable[[str], None]) -> dict[str, Check]:
    """The checks of coordd.toml by name; each problem is reported in a sentence."""
    if not isinstance(table, list) or not all(isinstance(one, dict) for one in table):
        report("expected [[check]], a list of tables: two brackets on each side")
        return {}
    if len(table) > CHECKS_MAX:
        report(f"expected at most {CHECKS_MAX} checks, found {len(table)}")
        return {}
    checks: dict[str, Check] = {}
    for number, one in enumerate(table, 1):
        check = _read(one, "", partial(_numbered, report, number))
        if check is None:
            continue
        if check.name in checks:
            report(f'check {number}: name: there is another check "{check.name}"')
        elif check.then == SUSPEND:
            report(f"check {number}: then: only a job can be suspended: write the check, or its name, into the job")
        else:
            checks[check.name] = check
    return checks


def read_of_job(
    said: object, job: str, known: Mapping[str, Check], report: Callable[[str], None]
) -> tuple[tuple[Check, ...], tuple[Use, ...]]:
    """The checks of a job, and its uses of those of coordd.toml (``known``)."""
    if not isinstance(said, list) or not all(isinstance(one, (str, dict)) for one in said):
        report("expected a list of tables ([[check]]) and names of checks of coordd.toml")
        return (), ()
    if len(said) > OF_JOB_MAX:
        report(f"expected at most {OF_JOB_MAX} checks, found {len(said)}")
        return (), ()
    checks: dict[str, Check] = {}
    uses: dict[str, Use] = {}
    for number, one in enumerate(said, 1):
        refer = {"name": one} if isinstance(one, str) else one
        if set(refer) <= {"name", "then"} and "name" in refer:
            use = _use(refer, known, partial(_numbered, report, number))
            if use is not None:
                uses[use.check] = use
            continue
        check = _read(refer, job, partial(_numbered, report, number))
        if check is not None and check.name in checks:
            report(f'check {number}: name: there is another check "{check.name}"')
        elif check is not None:
            checks[check.name] = check
    return tuple(checks.values()), tuple(uses.values())


def _numbered(report: Callable[[str], None], number: int, message: str) -> None:
    report(f"check {number}: {message}")


def _use(said: Mapping[str, Any], known: Mapping[str, Check], report: Callable[[str], None]) -> Use | None:
    name, then = said["name"], said.get("then", "abstain")
    if not isinstance(name, str):
        report(f"name: expected the name of a check of coordd.toml, found {found(name)}")
        return None
    if name not in known:
        shown = values.printable(name[:64])
        report(f'there is no check "{shown}" in coordd.toml; {nearest(shown, known)}')
        return None
    if then not in REACTIONS:
        report(f"then: expected one of {', '.join(REACTIONS)}; found {found(then)}")
        return None
    if then == SUSPEND and not known[name].shared:
        report(_NOT_SHARED)
        return None
    return Use(name, then)


_NOT_SHARED = (
    'then: "suspend" stops the job on every node, so the check needs scope = "cluster" or "tag:T"; "abstain" keeps it'
    " from the nodes whose check is bad"
)


def _read(table: Mapping[str, Any], job: str, report: Callable[[str], None]) -> Check | None:
    wrong: list[tuple[str, str]] = []
    said = values.read_table(table, _READERS, lambda key, message: wrong.append((key, message)))
    wrong += [(key, "expected it, found nothing") for key in ("name", "kind") if key not in table]
    if not wrong:
        wrong = list(_relations(table, said))
    for key, message in wrong:
        report(f"{key}: {message}")
    if wrong:
        return None
    renamed = {"every": "every_s", "timeout": "timeout_s"}
    return Check(job=job, **{renamed.get(key, key): value for key, value in said.items()})


def _relations(table: Mapping[str, Any], said: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(key, sentence) for each relation that is violated."""
    kind, scope = said["kind"], said.get("scope", NODE)
    wrong: list[tuple[str, str]] = []
    plugged = kind not in KINDS
    needed = TARGETS.get(kind, "")
    if needed and needed not in table:
        wrong.append((needed, f'a check of kind "{kind}" needs it'))
    others = {"url", "address", "argv", "path"} - {needed}
    wrong += [(key, f'a check of kind "{kind}" has no {key}') for key in table if key in others and not plugged]
    urls = said["url"].split(",") if needed == "url" and "url" in said else []
    wrong += [
        ("url", f"expected an address with {' or '.join(SCHEMES[kind])}, found {found(url)}")
        for url in urls
        if urlsplit(url).scheme not in SCHEMES[kind]
    ]
    if scope != NODE and kind in OF_MACHINE:
        wrong.append(("scope", f'a check of kind "{kind}" looks at its own machine: scope = "node"'))
    if scope != NODE and said.get("every", SHARED_EVERY_MIN_S) < SHARED_EVERY_MIN_S:
        wrong.append(("every", f"expected at least {SHARED_EVERY_MIN_S:g} s for a check that nodes share"))
    if said.get("then") == SUSPEND and scope == NODE:
        wrong.append(("then", _NOT_SHARED.removeprefix("then: ")))
    limits = [said[key] for key in ("degraded_at", "unhealthy_at") if key in said]
    if limits and (plugged or kind in UNMEASURED):
        wrong.append(("degraded_at", f'a check of kind "{kind}" measures nothing'))
    if len(limits) == 2 and (limits[0] < limits[1] if kind in ROOM else limits[0] > limits[1]):
        order = "above" if kind in ROOM else "below"
        wrong.append(("degraded_at", f"expected a limit {order} unhealthy_at ({limits[1]:g}), found {limits[0]:g}"))
    return wrong


def _kind(value: object) -> str:
    said = values.text(value)
    return said if said in KINDS else values.brought(said, CHECKS, f"one of {', '.join(KINDS)}", *KINDS)


def _url(value: object) -> str:
    """One address, or several of a master with spare ones. It stands in files that every node has."""
    said = ",".join(values.texts(value)) if isinstance(value, list) else values.text(value)
    if holds_password(said):
        raise ValueError("expected an address without a password: every node has a copy of this file")
    for url in said.split(","):
        try:
            parts = urlsplit(url)
            reached = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            reached = False
        if not reached or any(character.isspace() for character in url):
            raise ValueError(f"expected an address such as https://data.example:8443/ready, found {found(url)}")
    return said


def _address(value: object) -> str:
    said = values.text(value)
    host, _, port = said.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"expected HOST:PORT, found {found(said)}")
    return said


def _scope(value: object) -> str:
    said = values.text(value)
    if said in (NODE, CLUSTER):
        return said
    if said.startswith(TAG):
        return TAG + values.name(said.removeprefix(TAG))
    raise ValueError(f'expected "{NODE}", "{CLUSTER}" or "{TAG}T", found {found(said)}')


def _limit(value: object) -> float:
    limit = values.number(value)
    if limit < 0:
        raise ValueError(f"expected a number from 0, found {limit:g}")
    return limit


_READERS: dict[str, values.Reader] = {
    "name": values.name,
    "kind": _kind,
    "url": _url,
    "address": _address,
    "argv": values.program,
    "path": values.path,
    "every": values.seconds(EVERY_MIN_S, EVERY_MAX_S),
    "timeout": values.seconds(TIMEOUT_MIN_S, TIMEOUT_MAX_S),
    "fail_after": values.whole(1, IN_A_ROW_MAX),
    "pass_after": values.whole(1, IN_A_ROW_MAX),
    "scope": _scope,
    "then": values.one_of(*REACTIONS),
    "degraded_at": _limit,
    "unhealthy_at": _limit,
}
