"""The checks for people: rows, counts, sentences. What other nodes tell of theirs is checked here. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from coordd.core.checks.check import ABSTAIN, SUSPEND
from coordd.core.checks.reactions import quoted, told
from coordd.core.checks.state import BAD, DEGRADED, RANKS, STATES, UNKNOWN
from coordd.services.checks.service import Row
from coordd.services.control.doctor import FAIL, OK, WARN, Check as Line, check as line
from coordd.services.views.objects import hold_view, instant

# Bytes of the list that one node tells another; beyond, checks that are good are left out.
BYTES_MAX = 40 * 1024

# Checks in one answer of `doctor`.
LINES_MAX = 20

# What another node tells of one check, by its type.
_FIELDS = {"name": str, "scope": str, "node": str, "kind": str, "state": str, "output": str, "perfdata": str}
_TEXT_MAX = 1024


def row_view(row: Row) -> dict[str, Any]:
    """One check, as in `check list`."""
    check, standing = row.check, row.standing
    return {
        "name": check.key,
        "scope": check.scope,
        "node": row.node,
        "kind": check.kind,
        "state": row.state,
        "since": instant(row.since) if row.since else None,
        "checked_at": instant(standing.at) if standing.at else None,
        "output": row.text,
        "perfdata": standing.figures,
        "job": check.job or None,
        "then": check.then,
        "problem": standing.problem or None,
        "reported": {**(hold_view(row.reported) or {}), "state": row.reported.note.partition(" ")[0]}
        if row.reported is not None
        else None,
    }


def packed(rows: Iterable[Row]) -> str:
    """This node's own checks, for another node: the worst first, as many as fit."""
    own = [row_view(row) for row in rows if not row.check.shared]
    views = sorted(own, key=lambda view: -RANKS.get(view["state"], 0))
    for view in views:
        del view["reported"]
    while len(body := json.dumps(views, separators=(",", ":"))) > BYTES_MAX:
        views = views[: len(views) * 3 // 4]
    return body


def unpacked(body: str, node: str) -> list[dict[str, Any]]:
    """What another node said of its checks; nothing, if it makes no sense."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return []
    rows = []
    for one in found if isinstance(found, list) else ():
        good = isinstance(one, dict) and all(isinstance(one.get(key), kind) for key, kind in _FIELDS.items())
        if not good or one["state"] not in STATES:
            continue
        text = {
            key: one[key][:_TEXT_MAX] if isinstance(one.get(key), str) else None
            for key in (*_FIELDS, "since", "checked_at", "job", "then", "problem")
        }
        rows.append({**text, "node": node, "reported": None})
    return rows


def counts(rows: Iterable[Row]) -> dict[str, int]:
    """How many checks are in each state here, for `status`."""
    found = dict.fromkeys(STATES, 0)
    for row in rows:
        found[row.state] += 1
    return found


def lines(rows: Iterable[Row]) -> list[Line]:
    """For `doctor`: the checks that are not good, and those whose looks fail. What they saw is quoted, so that viewers
    are not shown it.
    """
    found = []
    total = 0
    for row in rows:
        total += 1
        name = f"check {row.check.key}"
        advice = f"coordctl check show {row.check.key}"
        if row.state in BAD or row.state == DEGRADED:
            bad = FAIL if row.state in BAD else WARN
            saw = f": {quoted(row.text)}" if row.text else ""
            found.append(line(name, bad, row.state + saw, advice))
        elif row.standing.problem:
            problem = quoted(row.standing.problem)
            found.append(line(name, WARN, f"it cannot look, so it counts for nothing: {problem}", advice))
    if not total:
        return []
    return found[:LINES_MAX] or [line("checks", OK, f"{total} checks, all of them good or not known yet")]


def warnings(uses: Iterable[tuple[Row, str]]) -> list[str]:
    """For `why`: a sentence for each check of a job that is not good."""
    found = []
    for row, then in uses:
        if row.state not in BAD and row.state != DEGRADED:
            continue
        follows = {ABSTAIN: "this node leaves its runs to others", SUSPEND: "the job is suspended when it turns bad"}
        follow = follows.get(then, "runs start all the same") if row.state in BAD else "runs start all the same"
        found.append(f"Its {told(row.check, row.state, row.text)}: {follow}.")
    return found


def rank(state: str) -> float:
    """For metrics: -1 unknown, 0 healthy, up to 4 insecure."""
    return float(RANKS[state]) if state != UNKNOWN else -1.0
