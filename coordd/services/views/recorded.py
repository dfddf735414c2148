"""What the journals of the nodes tell of one run: elections, and what people did. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from coordd.core.names import host_of
from coordd.core.visible import visible
from coordd.core.wire.events import RunOutcome
from coordd.services.views.timeline import Step

# The newest steps of one node's journal, in an answer to another node.
STEPS_MAX = 60

# Of each text, this many characters.
TEXT_MAX = 200

# The part of a journal (bytes, the newest) that is searched.
SEARCHED_BYTES_MAX = 32 * 1024 * 1024

# How a step of a run's own events is called, as in the timeline that the ledger's rows give.
_TASKS = {
    "task-sent": "triggered",
    "task-received": "granted",
    "task-started": "started",
    "task-succeeded": "success",
    "task-failed": "failure",
    "task-rejected": "rejected",
    "task-revoked": "revoked",
    "task-retried": "retried",
}

# These are told by the ledger's rows too, while the ledger has them.
IN_ROWS = frozenset(_TASKS.values()) - {"triggered"}

# The journals of the opener and of the winner have the same election.
ELECTED = "elected"


def steps(records: Iterable[Mapping[str, Any]], run: str) -> list[Step]:
    """The steps of a run in the records of a journal, in their order. Records of other runs are left out."""
    found = [step for record in records if (step := _step(record, run)) is not None]
    return found[-STEPS_MAX:]


def packed(found: Iterable[Step]) -> str:
    """The steps as another node gets them."""
    return json.dumps([[step.at, step.node, step.what, step.detail] for step in found], separators=(",", ":"))


def unpacked(body: str) -> list[Step]:
    """The steps of another node's answer; none if it makes no sense."""
    try:
        told = [(float(at), str(node), str(what), str(detail)) for at, node, what, detail in json.loads(body)]
    except (ValueError, TypeError, OverflowError, RecursionError):
        return []
    return [Step(at, _short(node), _short(what), _short(detail)) for at, node, what, detail in told if 0.0 < at < 1e11][
        :STEPS_MAX
    ]


def ended(outcome: RunOutcome) -> list[Step]:
    """The step that an end is which this node has heard or was told of, as a journal would tell it."""
    what, detail = _TASKS[outcome.kind], f"attempt {outcome.attempt}"
    return [Step(outcome.at, host_of(_short(outcome.node)), what, detail)]


def answer(about: Callable[[str, int], Iterable[Mapping[str, Any]]]) -> Callable[[str], str]:
    """Answers other nodes from this node's journal. ``about``: the records among the last bytes that have a text."""
    return lambda run: packed(steps(about(run, SEARCHED_BYTES_MAX), run))


def merged(of_row: list[Step], *of_journals: Iterable[Step]) -> list[Step]:
    """One timeline: what the ledger's rows tell, and beside it what only journals know. Each thing once."""
    told = list(of_row)
    seen = {(step.what, step.detail, round(step.at, 1)) for step in told}
    elections = set()
    for step in (step for journal in of_journals for step in journal):
        if of_row and step.what in IN_ROWS:
            continue
        key = (step.what, step.detail, round(step.at, 1))
        if key in seen or (step.what == ELECTED and step.detail in elections):
            continue
        seen.add(key)
        if step.what == ELECTED:
            elections.add(step.detail)
        told.append(step)
    return sorted(told, key=lambda step: step.at)


def _step(record: Mapping[str, Any], run: str) -> Step | None:
    try:
        kind, at = record["type"], float(record["timestamp"])
        host = str(record.get("hostname", ""))
        if kind == "election-decided" and record["run"] == run:
            return Step(at, host_of(str(record["opened_by"])), ELECTED, _short(_election(record)))
        if kind in _TASKS and record["run"] == run:
            holder = str(record.get("node", "")) or host
            return Step(at, host_of(holder), _TASKS[kind], _short(f"attempt {record.get('attempt', 0)}"))
        subject = str(record.get("subject", ""))
        if kind == "control" and _is_about(subject, run):
            return Step(at, host, str(record["method"]), _short(_control(record, subject[len(run) :])))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        return None  # of another version
    return None


def _is_about(subject: str, run: str) -> bool:
    return subject == run or (subject.startswith(run) and subject[len(run)] in "/: ")


def _election(record: Mapping[str, Any]) -> str:
    order = [host_of(name) for name in record.get("succession", ())]
    said = f"{order[0]} first" + (f", then {', '.join(order[1:])}" if order[1:] else "") if order else "nobody stands"
    why = "".join(f"; {host_of(name)} abstains: {reason}" for name, reason in record.get("abstained", {}).items())
    silent = [host_of(name) for name in record.get("silent", ())]
    number = f"attempt {record.get('attempt', 0)}: "
    return number + said + why + (f"; no statement of {', '.join(silent)}" if silent else "")


def _control(record: Mapping[str, Any], rest: str) -> str:
    """``rest``: what follows the run in the record's subject, as in " on n2: a note" and "/3: a note"."""
    refused = {"refused": "refused, ", "unknown": "its end is not known, "}.get(str(record.get("outcome")), "")
    reason = record.get("reason") or record.get("note") or rest.partition(": ")[2]
    return f"{refused}by {record.get('by', '')} ({record.get('uid', '')})" + (f": {reason}" if reason else "")


def _short(text: str) -> str:
    return visible(text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 3]}...")
