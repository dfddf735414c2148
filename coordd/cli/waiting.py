"""Waiting for a run that was just triggered: its first moments, or until its end."""

from __future__ import annotations

import time
from typing import Any

from coordd.cli.options import asked, say
from coordd.core.ledger.words import MISSED, PENDING, REJECTED, REVOKED, SUCCESS, TERMINAL, UNKNOWN
from coordd.errors import CoorddError, RefusedError, UnavailableError

# A run is asked for soon at first, then less often: many runs take seconds, some take days.
POLL_FIRST_S = 0.1
POLL_LAST_S = 2.0

# Errors that --wait survives: the ledger or the daemon is away for a while.
PASSING = frozenset(("unavailable", "try_later"))

# Without any answer for this time (seconds), --wait gives up: a person must look.
AWAY_S = 600.0

# Within this time an election is decided and the ledger has answered. If the run is still pending then, something
# prevents it: the person is told what, at once and later if it changes.
SETTLED_S = 1.5
WHY_AGAIN_S = 5.0

# The run was never launched, and will not be.
NOT_LAUNCHED = frozenset((REJECTED, REVOKED, MISSED))


def first_look(answer: dict[str, Any]) -> dict[str, Any]:
    """The triggered run, once it is no longer pending or the time is over; {} if nobody can tell."""
    if answer.get("durable") != "ledger":
        return {}
    until = time.monotonic() + SETTLED_S
    while True:
        try:
            shown: dict[str, Any] = asked().call("run.show", id=answer["id"])
        except CoorddError:
            return {}  # it is recorded: a failed look-up does not change that
        if shown.get("state") != PENDING or time.monotonic() >= until:
            return shown
        time.sleep(POLL_FIRST_S)


def trouble(run: dict[str, Any]) -> str:
    """What keeps a run waiting; "" when nothing is known."""
    if run.get("state") != PENDING:
        return ""
    try:
        why = str(asked().call("why", id=run["id"])["why"])
    except CoorddError:
        return ""
    from coordd.cli.show.phrases import safe

    return safe(why)


def ended(ident: str, durable: str, timeout_s: float | None) -> dict[str, Any] | None:
    """Wait for a run's end and print what happens; None when the time is over."""
    started = time.monotonic()
    pause_s, said, troubled, why = POLL_FIRST_S, "", "", ""
    ask_why_at = started + SETTLED_S
    heard_at = started
    while True:
        try:
            shown: dict[str, Any] = asked().call("run.show", id=ident)
            troubled, heard_at = "", time.monotonic()
        except (RefusedError, UnavailableError) as exc:
            # A trigger that only this node keeps is unknown to the ledger until the ledger answers again.
            passing = PASSING | ({"unknown_run"} if durable == "node" else frozenset[str]())
            if (isinstance(exc, RefusedError) and exc.kind not in passing) or time.monotonic() - heard_at > AWAY_S:
                raise
            if str(exc) != troubled:
                troubled = str(exc)
                say(f"{ident}: waiting, although: {exc}")
            shown = {}
        if shown.get("state") in TERMINAL:
            say(told(shown))
            return shown
        if shown and (now := told(shown)) != said:
            say(said := now)
        if shown.get("state") == PENDING and time.monotonic() >= ask_why_at:
            ask_why_at = time.monotonic() + WHY_AGAIN_S
            if (now := trouble(shown)) and now != why:
                say(why := now)
        if timeout_s is not None and time.monotonic() - started >= timeout_s:
            return None
        left_s = pause_s if timeout_s is None else started + timeout_s - time.monotonic()
        time.sleep(max(0.0, min(pause_s, left_s)))
        pause_s = min(POLL_LAST_S, pause_s * 1.3)


def told(run: dict[str, Any]) -> str:
    """A run's state in a line or two."""
    from coordd.cli.show.phrases import duration, safe

    words = [f"{run['id']}: {run['state']}"]
    if run.get("node"):
        words.append(f"on {run['node']}")
    if run.get("attempt"):
        words.append(f"(attempt {run['attempt']})")
    if run.get("runtime_s") is not None and run["state"] in TERMINAL:
        words.append(f"after {duration(run['runtime_s'])}")
    text = " ".join(words)
    if run.get("reason") and run["state"] not in (SUCCESS, "received", "started", "pending"):
        text += f": {run['reason']}"
    if run["state"] == UNKNOWN:
        text += f"\n  hint: look at its output, then coordctl run resolve '{run['id']}' --as success|failed|relaunch"
    return "\n".join(safe(line) for line in text.split("\n"))
