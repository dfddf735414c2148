"""An incident from journals, replayed: the one function behind `coordd history replay`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from coordd.core.ledger.rows import Row
from coordd.core.ledger.words import LOST, MISSED, PENDING, RECEIVED, REJECTED, RETRY, REVOKED, TERMINAL
from coordd.core.wire.chain import TYPE as CONTROL
from coordd.core.wire.merge import TASK, merge
from coordd.history.proof.acts import REFUSED
from coordd.history.proof.judge import BREACH, CLOCK_SKEW_S, Finding, Judge
from coordd.history.replay.player import Player, Step
from coordd.history.replay.records import Incident, collect

# What no journal has, and no replay can therefore judge.
NOT_RECORDED = (
    "heartbeats and messages that a node heard, apart from the statements of an election",
    "renewals of a lease: a holder that is heard of has renewed it",
    "claims that the ledger refused: only grants and ends are recorded",
    "the settings of nodes, checks, budgets, and the misfire policy: an abstention's reason is taken as it stands",
    "exit codes that are never tried again, and a quarantine of the ledger",
)

# The acts that end a run, each with the states of a run that it ends at once.
ENDED_BY = {"run.revoke": (PENDING, RETRY, RECEIVED), "run.cancel": (PENDING, RETRY)}


class Replayed(NamedTuple):
    """The steps in order; ``findings``: what `coordd history verify` says of this run's lines."""

    run: str
    steps: list[Step]
    findings: list[Finding]
    row: Row | None
    recorded: str
    final: str  # how the record's end differs from the rules'; "" if it does not
    journals: int
    damaged: int

    @property
    def not_recorded(self) -> tuple[str, ...]:
        """What no journal has, and this replay does not judge."""
        return NOT_RECORDED

    @property
    def differences(self) -> list[str]:
        """What differs from the rules, each with its kind and its place."""
        told = [
            f"{step.difference}: {step.record.file}:{step.record.line}: {step.said}; the rules say: {step.rules}"
            for step in self.steps
            if step.difference
        ]
        for one in self.findings:
            if one.severity == BREACH:
                file, line = one.lines[-1] if one.lines else ("", 0)
                told.append(f"{one.kind}: {file}:{line}: {one.detail}")
        return told + ([f"state: {self.final}"] if self.final else [])

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "run": self.run,
            "state": self.recorded,
            "rules_state": self.row.state if self.row is not None else None,
            "steps": [step_dict(step) for step in self.steps],
            "differences": self.differences,
            "notices": [one.as_dict() for one in self.findings if one.severity != BREACH],
            "not_recorded": list(NOT_RECORDED),
            "journals": self.journals,
            "damaged_lines": self.damaged,
        }


def step_dict(step: Step) -> dict[str, Any]:
    """One step, for JSON."""
    record = step.record
    return {
        "at": record.at,
        "clock": record.clock,
        "node": record.host,
        "type": record.kind,
        "verb": step.verb,
        "said": step.said,
        "rules": step.rules or None,
        "difference": step.difference or None,
        "assumed": step.assumed or None,
        "file": record.file,
        "line": record.line,
    }


def replay(places: Sequence[str], run: str, clock_skew_s: float = CLOCK_SKEW_S) -> Replayed:
    """Replay a run from the journals in these directories.

    Raises UnavailableError when a journal cannot be read, or none has the run.
    """
    incident = collect(places, run)
    player = Player(incident, clock_skew_s)
    player.play()
    judge = Judge(clock_skew_s)
    judge.nodes.update(incident.lives)
    for line in incident.lines:
        judge.begin()  # the chains of the audit are not judged from single lines
        judge.take(line)
    findings = [finding for finding in judge.verdict() if finding.run == run]
    recorded = _recorded(incident)
    return Replayed(
        run,
        player.steps,
        findings,
        player.row,
        recorded,
        _differs(recorded, player.row),
        incident.journals,
        incident.damaged,
    )


def _recorded(incident: Incident) -> str:
    """The state that the history has for the run. Nodes of earlier versions write no event when a person ends a run
    that waits: that stands only in their audit.
    """
    mine = [one for one in incident.records if one.run == incident.run and one.kind.startswith(TASK)]
    states = merge([one.event() for one in mine])
    state = next(iter(states.values())).state if states else PENDING
    acts = [one for one in incident.records if one.is_about(incident.run) and one.text("method") in ENDED_BY]
    done = [one for one in acts if one.kind == CONTROL and one.text("outcome") != REFUSED]
    if not done or state not in ENDED_BY[done[-1].text("method")]:
        return state
    granted_s = max([one.count("token") / 1e6 for one in mine], default=0.0)  # by the ledger's clock
    return state if granted_s > done[-1].at else REVOKED


def _differs(recorded: str, row: Row | None) -> str:
    """The history's end beside the ledger's. Only ends are compared: the record of others may come later."""
    if row is None or recorded not in TERMINAL:
        return ""
    ruled = {MISSED: REJECTED, LOST: RETRY}.get(row.state, row.state)
    if ruled == recorded or row.state == RETRY:
        return ""
    return f"the journals end with {recorded}, the rules with {row.state}"
