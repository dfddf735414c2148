"""The ledger's rules: grants, the gate, reports, commits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from coordd.core.ledger import rules
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.rows import LedgerTime, changed_by
from coordd.core.ledger.rules import Rules
from coordd.core.ledger.runner_requests import Grant, Report
from coordd.core.ledger.words import OK, RECEIVED, REVOKED, STALE, STARTED, TERMINAL, Policy
from coordd.history.replay import store
from coordd.history.replay.store import MemoryStore
from simulator.mutants.mutant import Mutant, instead


@instead(Rules, "gate")
def _gate_answers_once(real: Callable[..., Answer], self: Rules, store: Any, said: Any, now: Any) -> Answer:
    row = self._mine(store, said.grant)
    return Answer(STALE) if row is not None and row.state == STARTED else real(self, store, said, now)


@instead(Rules, "_mine")
def _any_holder(_real: Any, _rules: Rules, store: Any, grant: Grant) -> Any:
    """Any caller that names the attempt counts as its holder."""
    row = store.run(grant.run)
    return row if row is not None and row.attempt == grant.attempt else None


@instead(Rules, "_has_forgotten")
def _only_what_is_not_over_is_forgotten(_real: Any, self: Rules, _store: Any, row: Any, grant: Grant) -> bool:
    return row is None or self._is_older(row, grant)


@instead(Rules, "replay")
def _the_same_attempt_again(real: Any, self: Rules, store: Any, said: Any, now: Any) -> Any:
    answer = real(self, store, said, now)
    row = store.run(said.run)
    if answer.word == OK:
        row.attempt = said.attempt
        store.put_run(row)
    return answer


@instead(Rules, "report")
def _terminal_states_are_left(real: Any, self: Rules, store: Any, said: Report, now: Any) -> Any:
    row = self._mine(store, said.grant)
    if row is not None and row.state in TERMINAL and said.state in TERMINAL:
        row.state = said.state
        store.put_run(row)
    return real(self, store, said, now)


@instead(Rules, "gate")
def _the_gate_knows_no_time(real: Callable[..., Answer], self: Rules, store: Any, said: Any, now: Any) -> Answer:
    row = self._mine(store, said.grant)
    if row is not None and row.state == RECEIVED and row.not_before > now.wall:
        row.not_before = now.wall
        store.put_run(row)
    return real(self, store, said, now)


@instead(Rules, "gate")
def _the_gate_opens_for_a_cancelled_run(real: Any, self: Rules, store: Any, said: Any, now: Any) -> Answer:
    row = self._mine(store, said.grant)
    if row is not None and row.cancel and row.state == RECEIVED:
        row.cancel = 0
        store.put_run(row)
    answer: Answer = real(self, store, said, now)
    return answer


@instead(Rules, "revoke")
def _an_open_gate_is_revoked(real: Any, self: Rules, store: Any, said: Any, now: Any) -> Answer:
    """A run that is not due yet is revoked, although its runner waits behind an open gate."""
    row = store.run(said.run)
    if row is not None and row.state == STARTED and row.not_before > now.wall:
        self._end(store, row, REVOKED, f"revoked by {said.by}", now)
        return Answer(OK, state=REVOKED)
    answer: Answer = real(self, store, said, now)
    return answer


def _a_date_is_believed(row: Any, now: Any) -> float:
    return max(0.0, float(row.not_before - now.wall))


@instead(Rules, "commit")
def _commit_twice(real: Callable[..., Answer], self: Rules, store: Any, said: Any, now: Any) -> Answer:
    row = self._mine(store, said.grant)
    if row is not None:
        row.commit_token = 0
        store.put_run(row)
    return real(self, store, said, now)


@instead(Rules, "_lose")
def _hold_is_relaunched(_real: Any, self: Rules, store: Any, row: Any, reason: str, now: Any) -> None:
    row.relaunches += 1
    self._relaunch(store, row, Policy.unpack(row.policy), reason, now)


@instead(Rules, "_limited")
def _limits_are_not_asked(_real: Any, _rules: Rules, *_args: Any) -> None:
    """Whoever claims gets it, however full the pool is."""


@instead(MemoryStore, "slot_holders")
def _a_granted_run_takes_no_slot_yet(real: Callable[..., Any], store: MemoryStore, key: str) -> Any:
    return [row for row in real(store, key) if row.state != RECEIVED]


@instead(MemoryStore, "put_start")
def _starts_are_not_kept(_real: Any, _store: MemoryStore, *_args: Any) -> None: ...


@contextlib.contextmanager
def _an_end_has_no_number() -> Iterator[None]:
    def numbered(row: Any, before: Any) -> list[str]:
        return [] if row.state in TERMINAL else changed_by(row, before)

    with mock.patch.object(store, "changed_by", numbered):
        yield


@instead(Rules, "_served")
def _a_cursor_serves_another_life(real: Any, self: Rules, since: str, newest: int, kept: Any, now: Any) -> Any:
    number = since.rpartition(" ")[2]
    calm = LedgerTime(now.wall, now.lease, now.boot, epoch=now.epoch)
    return real(self, f"{now.epoch} {number}", newest, kept, calm)


MUTANTS = (
    Mutant(
        "a forgotten attempt of a run that is over leaves no record",
        "§6 when the ledger goes back: its number is not given again",
        "S1",
        _only_what_is_not_over_is_forgotten,
        near=16402605,
    ),
    Mutant(
        "tokens from a bare counter",
        "§6 Tokens: max(last + 1, the ledger's time)",
        "S3",
        lambda: mock.patch.object(Rules, "_next_token", lambda self, job, now: job.fence + 1),
        None,
        forgets=True,
    ),
    Mutant(
        "the gate answers once", "§6: idempotent for the same token and nonce", "G", _gate_answers_once, ("lost_reply",)
    ),
    Mutant(
        "token and nonce are not compared",
        "§6: (token, nonce) is compared, never one alone",
        "G",
        _any_holder,
        ("freeze", "targeted", "ledger_cut"),
    ),
    Mutant("a terminal state is left", "§9 S5", "S5", _terminal_states_are_left),
    Mutant("a replay is the same attempt again", "§6 replay: the next number", "S1", _the_same_attempt_again, None),
    Mutant("the gate opens early", "§6 gate: not before the fire time", "E TP", _the_gate_knows_no_time),
    Mutant(
        "the gate opens for a cancelled run",
        "§6 gate: to be cancelled: revoked",
        "X",
        _the_gate_opens_for_a_cancelled_run,
    ),
    Mutant(
        "an open gate is revoked",
        "§7: past its gate a run has begun, and is not revoked",
        "X",
        _an_open_gate_is_revoked,
        ("targeted",),
    ),
    Mutant(
        "a clock that was ahead is waited for",
        "§6 claim: a run waits for its fire time and its pause",
        "L",
        lambda: mock.patch.object(rules, "due_in", _a_date_is_believed),
        ("ledger_far_step", "ledger_glitch"),
    ),
    Mutant(
        "overlap is not looked at",
        "§6 claim: within the job's limits",
        "O",
        lambda: mock.patch.object(Rules, "_overlap", lambda *_: None),
    ),
    Mutant("a run is published twice", "§6 commit: no commit yet", "S4", _commit_twice),
    Mutant("a held run is launched again", "§6 claim: UNKNOWN under hold", "H S2", _hold_is_relaunched),
    Mutant("limits are not asked", "§6 claim: limits", "Y", _limits_are_not_asked),
    Mutant("a granted run takes no slot yet", "§6 claim: limits", "Y", _a_granted_run_takes_no_slot_yet),
    Mutant("starts are not kept", "§6 claim: rates", "Y", _starts_are_not_kept),
    Mutant(
        "an end has no number", "§6 the feed: every change that a sweep shows is numbered", "FD", _an_end_has_no_number
    ),
    Mutant(
        "a cursor serves another life",
        "§6 the feed: a cursor of another life is refused",
        "FD",
        _a_cursor_serves_another_life,
        forgets=True,
    ),
)
