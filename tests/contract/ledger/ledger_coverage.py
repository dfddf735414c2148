"""The coverage of a random search: answers by operation, and moves of runs.

Two lists here are written by hand, not taken from the code: the answers that docs/protocol.md allows, and the moves of
a run. A search must have seen all entries of both.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import seed, settings
from hypothesis.stateful import run_state_machine_as_test

from coordd.core.ledger import people, requests
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.ports import Ledger

# An operation and the words of its answers. For a claim that ended or must wait, the reason follows the word.
ANSWERS = {
    "register": "ok exists conflict early",
    "claim": "granted early held lost differs outdated unrecorded "
    "finished:success finished:failure finished:revoked finished:rejected finished:missed finished:lost "
    "finished:settled limited:suspended limited:drained limited:overlap limited:queue",
    "gate": "ok early stale revoked",
    "renew": "ok cancel lost",
    "report": "ok stale",
    "commit": "ok stale",
    "revoke": "ok finished",
    "cancel": "ok finished",
    "resolve": "ok finished",
    "replay": "ok exists finished",
    "discard": "ok finished",
    "suspend": "ok finished",
    "keep": "ok finished",
    "open": "ok",
    "page": "ok",
    "ended": "ok",
    "settle": "finished held lost",
    "new_rules": "ok",
    "activate": "ok differs outdated",
    "adopt": "ok differs outdated",
    "pass_over": "ok finished early differs outdated",
    "plan": "ok conflict finished",
    "fill": "ok exists limited early finished differs outdated",
    "rerun": "ok exists limited finished differs outdated",
}
RECOVERING = {
    "replay": "recovering",
    "claim": "recovering",
    "gate": "recovering",
    "renew": "recovering",
    "report": "recovering",
    "commit": "recovering",
    "restore": "ok stale",
    "settle": "recovering",
    "new_rules": "recovering",
    "activate": "recovering",
    "adopt": "recovering",
    "pass_over": "recovering",
    "fill": "recovering",
    "rerun": "recovering",
}

# The moves of a run from one call to the next. "" is a run without a row. A backfill makes `retry` of such a run and of
# ended ones: here of a missed one; corners/test_backfill.py tests the others.
MOVES = {
    "": "pending received rejected missed revoked retry",
    "pending": "received rejected missed revoked",
    "received": "started success failure revoked lost retry missed",
    "started": "success failure revoked lost retry unknown",
    "unknown": "started success failure revoked lost retry",
    "retry": "received missed revoked",
    "success": "",
    "failure": "retry",
    "revoked": "",
    "rejected": "",
    "missed": "retry",
    "lost": "retry",
}
FORGOTTEN = ("success", "failure", "revoked", "rejected", "missed", "lost")


def pairs(table: dict[str, str]) -> set[tuple[str, str]]:
    return {(first, second) for first, words in table.items() for second in words.split()}


class Seen:
    """The answers and moves of one search."""

    def __init__(self) -> None:
        self.answers: set[tuple[str, str]] = set()
        self.moves: set[tuple[str, str]] = set()

    def note(self, op: str, answer: Any, before: dict[str, str], after: dict[str, str]) -> None:
        """Note one call: its answer, and the states of all runs before and after it."""
        word = answer.word
        if op == "claim" and isinstance(answer, Answer) and word in ("finished", "limited"):
            word += ":" + (answer.state if word == "finished" else answer.by.partition(" ")[0].rstrip(":"))
        self.answers.add((op, word))
        self.move(before, after)

    def move(self, before: dict[str, str], after: dict[str, str]) -> None:
        for run in before.keys() | after.keys():
            was, now = before.get(run, ""), after.get(run, "")
            if was != now:
                self.moves.add((was, now))

    def missing(self, *answers: dict[str, str]) -> set[tuple[str, str]]:
        """The expected answers and moves that were not seen."""
        wanted = set().union(*(pairs(table) for table in answers)) - self.answers
        return wanted | ((pairs(MOVES) | {(state, "") for state in FORGOTTEN}) - self.moves)


def fields(thing: Any) -> Any:
    """Rows and answers as plain data; each ledger has lives of its own, and counts its own grants and changes."""
    if isinstance(thing, list):
        return [fields(each) for each in thing]
    if isinstance(thing, dict):
        return {key: fields(each) for key, each in thing.items()}
    own = {"grants", "cursor"} if isinstance(thing, OpenAnswer) else {"epoch", "grants"}
    names = set(getattr(thing, "__slots__", ())) - own
    return {name: fields(getattr(thing, name)) for name in names} if names else thing


# The number of rounds of one search; each has other examples. The rarest answers need up to 15. The rest is a reserve:
# a change of the rules or of hypothesis may make some case rarer.
ROUNDS = 40


def search(machine: Any, size: settings, *answers: dict[str, str]) -> None:
    """Run a machine until it has seen every answer and move; fails after ROUNDS rounds. The machine's calls fill
    ``seen``.

    Pages are small during the search.
    """
    machine.seen = Seen()
    with pytest.MonkeyPatch.context() as patch:
        for module in (people, requests):
            patch.setattr(module, "OPEN_PAGE", 2)
        for number in range(ROUNDS):
            run_state_machine_as_test(seed(number)(machine) if size.derandomize else machine, settings=size)
            if not machine.seen.missing(*answers):
                return
    raise AssertionError(f"never seen: {sorted(machine.seen.missing(*answers))}")


def states(ledger: Ledger) -> dict[str, str]:
    return {row.run: row.state for row in ledger.runs()}
