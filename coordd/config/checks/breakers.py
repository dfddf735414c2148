"""Reads ``[breakers]`` of coordd.toml: how the breakers of this node's connections go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coordd.config import values
from coordd.config.checks.loud import read_loud
from coordd.core.breaker import CLOSED, FAILURES, GROWTHS, HALF_OPEN, KINDS, Rule
from coordd.core.jobs.arguments import nearest
from coordd.core.ledger.words import FAILURE

# The failures that each has. The bus is connected or not: it is never late.
CONNECTIONS = {"bus": (FAILURE,), "ledger": KINDS}

AFTER_MAX = 100
# With less a probe is made all the time; with more nothing new starts for that long although the ledger is back.
OPEN_MIN_S, OPEN_MAX_S = 0.05, 300.0
# Failures of a day ago have nothing to do with those of now.
WINDOW_MIN_S, WINDOW_MAX_S = 1.0, 86_400.0


def read_breakers(table: Any, report: Callable[[str], None]) -> dict[str, Rule]:
    """The rules by connection; each problem is reported in a sentence."""
    if not isinstance(table, dict):
        report('expected tables by connection, such as ledger = { after = 3, open_for = "0.5s" }')
        return {}
    rules: dict[str, Rule] = {}
    for name, said in table.items():
        shown = values.printable(name[:60])
        if name not in CONNECTIONS:
            report(f'there is no connection "{shown}"; {nearest(shown, CONNECTIONS)}')
        elif not isinstance(said, dict):
            report(f"{name}: expected a table, found {values.found(said)}")
        else:
            wrong: list[str] = []
            rules[name] = _rule(said, CONNECTIONS[name], wrong)
            for message in wrong:
                report(f"{name}: {message}")
    return rules


def _rule(said: Mapping[str, Any], kinds: tuple[str, ...], wrong: list[str]) -> Rule:
    """One rule; what is wrong with it is added to ``wrong``."""
    read = values.read_table(said, _READERS, lambda key, message: wrong.append(f"{key}: {message}"))
    usual = Rule()
    after, on = read.get("after", {}), read.get("on", FAILURES)
    if unknown := [word for word in read.get("on", ()) if word not in kinds]:
        wrong.append(f"on: expected {', '.join(kinds)}, found {values.found(unknown[0])}; {nearest(unknown[0], kinds)}")
    if isinstance(on, dict):
        groups = tuple([(count, (kind,)) for kind, count in on.items()])
        if CLOSED in after:
            wrong.append("after: has no effect beside a table under on, which says of each how many")
    else:
        groups = ((after.get(CLOSED, usual.groups[0][0]), tuple(on)),)
    first_s = read.get("open_for", usual.open_for_s)
    longest_s = read.get("open_for_max", max(usual.open_for_max_s, first_s))
    if longest_s < first_s:
        wrong.append("open_for_max: expected a duration of at least open_for")
    return Rule(
        groups=groups,
        window_s=read.get("window", usual.window_s),
        probes=after.get(HALF_OPEN, usual.probes),
        open_for_s=first_s,
        open_for_max_s=longest_s,
        growth=read.get("growth", usual.growth),
        loud=read.get("loud", usual.loud),
    )


def _after(value: object) -> dict[str, int]:
    """How many failures open it, by its state; a number alone is of a closed one."""
    if not isinstance(value, dict):
        return {CLOSED: _COUNT(value)}
    for state in value:
        if state not in (CLOSED, HALF_OPEN):
            raise ValueError(f"expected {CLOSED} or {HALF_OPEN}, found {values.found(state)}")
    return {state: _COUNT(count) for state, count in value.items()}


def _on(value: object) -> tuple[str, ...] | dict[str, int]:
    """Which failures count; or a table that says of each how many."""
    if not isinstance(value, (list, dict)) or not value or not all(isinstance(word, str) for word in value):
        raise ValueError(f"expected a list of failures, or a table of numbers by failure, found {values.found(value)}")
    return {word: _COUNT(count) for word, count in value.items()} if isinstance(value, dict) else tuple(value)


_COUNT = values.whole(1, AFTER_MAX)
_READERS: dict[str, values.Reader] = {
    "after": _after,
    "on": _on,
    "window": values.seconds(WINDOW_MIN_S, WINDOW_MAX_S),
    "open_for": values.seconds(OPEN_MIN_S, OPEN_MAX_S),
    "open_for_max": values.seconds(OPEN_MIN_S, OPEN_MAX_S),
    "growth": values.one_of(*GROWTHS),
    "loud": read_loud,
}
