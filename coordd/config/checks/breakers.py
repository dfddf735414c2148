"""Reads ``[breakers]`` of coordd.toml: how the breakers of this node's connections go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordd.config import values
from coordd.core.breaker import GROWTHS, Rule
from coordd.core.jobs.arguments import nearest
from coordd.core.jobs.schedule import parse_duration

CONNECTIONS = ("bus", "ledger")

AFTER_MAX = 100
# With less a probe is made all the time; with more nothing new starts for that long although the ledger is back.
OPEN_MIN_S, OPEN_MAX_S = 0.05, 300.0


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
            read = values.read_table(said, _READERS, lambda key, message: wrong.append(f"{key}: {message}"))  # noqa: B023 - it is called here
            renamed = {"open_for": "open_for_s", "open_for_max": "open_for_max_s"}
            fields = {renamed.get(key, key): value for key, value in read.items()}
            fields.setdefault("open_for_max_s", max(Rule().open_for_max_s, fields.get("open_for_s", 0.0)))
            rule = Rule(**fields)
            if rule.open_for_max_s < rule.open_for_s:
                wrong.append("open_for_max: expected a duration of at least open_for")
            for message in wrong:
                report(f"{name}: {message}")
            rules[name] = rule
    return rules


def _seconds(value: Any) -> float:
    seconds = parse_duration(value)
    if not OPEN_MIN_S <= seconds <= OPEN_MAX_S:
        raise ValueError(f"expected {OPEN_MIN_S:g} s to {OPEN_MAX_S:g} s, found {seconds:g} s")
    return seconds


_READERS: dict[str, values.Reader] = {
    "after": values.whole(1, AFTER_MAX),
    "open_for": _seconds,
    "open_for_max": _seconds,
    "growth": values.one_of(*GROWTHS),
}
