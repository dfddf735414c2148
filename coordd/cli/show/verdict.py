"""The verdict of `coordctl check-node`, as monitoring plugins give it: a code, one line, and performance data. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from coordd.cli.show.phrases import plain
from coordd.core.checks.state import BAD
from coordd.core.context import clock_fault

OK, WARNING, CRITICAL, UNKNOWN = range(4)
WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")

# More names than this in one line do not help.
NAMES_MAX = 5


class Verdict(NamedTuple):
    """The result. ``perfdata``: label to value, or to value and the values that warn and alarm, as text."""

    code: int
    text: str
    perfdata: dict[str, str]

    def line(self) -> str:
        """The one line of a monitoring plugin. A "|" separates the data, so the text has none."""
        data = " ".join([f"{label}={value}" for label, value in self.perfdata.items()])
        text = plain(self.text).replace("|", "/")
        return f"COORDD {WORDS[self.code]} - {text}" + (f" | {data}" if data else "")

    def view(self) -> dict[str, Any]:
        """For programs."""
        return {"code": self.code, "state": WORDS[self.code].lower(), "text": self.text, "perfdata": self.perfdata}


def judged(status: dict[str, Any], weaker: Iterable[str], took_s: float) -> Verdict:
    """The verdict about a node that has answered. ``weaker``: what its ledger's server lacks.

    Raises KeyError or TypeError if the answer is not that of a daemon of this version.
    """
    members, runs = status["members"], status["runs"]
    critical, warning = _connections(status), []
    if status["alarms"]:
        critical.append(f"ALARM: {status['alarms'][0]}")
    critical += _starts_nothing(status)
    if status["drained"] is not None or status["state"] == "draining":
        warning.append(f"drained{_by(status['drained'])}")
    elif status["state"] != "ready":
        critical.append(f"the node is {status['state']}")
    elif not status["ready"]["node"] and not critical:
        warning.append(f"takes no new runs: {status['ready']['reason']}")
    if status["suspended"]["all"] is not None:
        warning.append(f"all jobs are suspended{_by(status['suspended']['all'])}")
    for word, names in (
        ("late", status["late_jobs"]),
        ("unknown", runs["unknown"]),
        ("stuck", runs["stuck"]),
        ("lost", [f"{members['lost']} of the nodes"] if members["lost"] else []),
        ("weaker ledger", list(weaker)),
        ("boot steps failed", [step["name"] for step in status.get("boot", ()) if step["state"] == "failed"]),
        ("disabled jobs", status["jobs"]["disabled"]),
        ("bad checks", [f"{count} {state}" for state, count in _bad(status).items()]),
    ):
        if names:
            warning.append(f"{word}: {_names(names)}")
    if status["bus"]["state"] != "connected":
        warning.append(f"the bus is {status['bus']['state']}")
    if fault := clock_fault(status.get("clock_skew_s") or 0.0):
        warning.append(f"it {fault}")
    if not status["jobs"]["enabled"] and not status["jobs"].get("held"):
        warning.append("no job is loaded")
    alive, active = members["alive"], runs["active"]
    fine = f"{status['state']}, {_count(alive, 'node')} alive, {_count(active, 'run')} active"
    code = CRITICAL if critical else WARNING if warning else OK
    return Verdict(code, "; ".join([*critical, *warning]) or fine, _data(status, took_s))


def _connections(status: dict[str, Any]) -> list[str]:
    """The missing connections without which this node can do nothing for the cluster."""
    found = []
    members, ledger = status["members"], status["ledger"]
    if ledger["state"] not in ("connected", "recovering"):
        found.append(f"the ledger is {ledger['state']}" + (f": {ledger['error']}" if ledger["error"] else ""))
    if status["isolated"] or (members["alive"] == 1 and members["suspect"] + members["lost"] > 0):
        found.append("it hears none of the other nodes")
    return found


def _starts_nothing(status: dict[str, Any]) -> list[str]:
    """What keeps this node from starting runs, drained or not, until somebody mends it."""
    causes = [cause for cause in (status["ledger"].get("not_used"), status.get("impaired")) if cause]
    found = [f"it starts nothing: {'; '.join(causes)}"] if causes else []
    disk = status.get("disk") or {}  # an older daemon does not tell
    free_mb = disk.get("free_mb")
    if free_mb is not None and free_mb <= disk["least_mb"]:
        found.append(f"the disk of its state directory has {free_mb} MiB free")
    files = disk.get("free_files")
    if files is not None and files <= disk["least_files"]:
        found.append(f"the disk of its state directory has room for {files} more files only")
    return found


def _data(status: dict[str, Any], took_s: float) -> dict[str, str]:
    members, runs = status["members"], status["runs"]
    return {
        "alive": f"{members['alive']};;;0",
        "suspect": f"{members['suspect']};;;0",
        "lost": f"{members['lost']};0;;0",
        "active": f"{runs['active']};;;0",
        "late_jobs": f"{len(status['late_jobs'])};0;;0",
        "unknown_runs": f"{len(runs['unknown'])};0;;0",
        "dead_letters": f"{len(runs['dead'])};;;0",
        "bad_checks": f"{sum(_bad(status).values())};0;;0",
        "uptime": f"{status['uptime_s']:.0f}s;;;0",
        "time": f"{took_s:.3f}s;;;0",
    }


def _bad(status: dict[str, Any]) -> dict[str, int]:
    """How many checks that concern this node are in each bad state."""
    return {state: count for state, count in status["checks"].items() if state in BAD and count}


def _names(names: list[str]) -> str:
    return ", ".join(names[:NAMES_MAX]) + (", …" if len(names) > NAMES_MAX else "")


def _by(hold: dict[str, Any] | None) -> str:
    """Who stopped it, until when and why."""
    said = hold or {}
    by = f" by {said['by']}" if said.get("by") else ""
    until = f" until {said['until']}" if said.get("until") else ""
    return by + until + (f": {said['note']}" if said.get("note") else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
