"""A node that reads everything once, and then only what has changed: it must know as much as one that begins again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine, invariant
from support.memory import MemoryLedger

from coordd.core.ledger.open_answer import JobState, OpenAnswer, OpenRun
from coordd.core.ledger.requests import ListOpen, Page
from coordd.core.ledger.words import CLAIM_AHEAD_S
from coordd.core.runs.sweep import Heads
from coordd.ports import Ledger

# What a renewal changes, and what time alone changes, is read by name.
RENEWED = frozenset(("beat", "due_in_s", "late_in_s", "lease", "left_s", "overdue"))

# The nodes sweep once in this number of steps.
SWEEPS_EVERY = 10

Ask = Callable[[ListOpen | Page], OpenAnswer]


def shown(row: OpenRun) -> dict[str, Any]:
    """What a change of which is told."""
    return {name: getattr(row, name) for name in OpenRun.__slots__ if name not in RENEWED}


class Mirror:
    """The knowledge of one node."""

    def __init__(self, jobs: Sequence[str]) -> None:
        self.jobs = tuple(jobs)
        self.cursor = ""
        self.rows: dict[str, dict[str, Any]] = {}
        self.heads = Heads()
        self.wall = 0.0
        self.told_at: dict[str, float] = {}  # job -> the ledger's wall clock when its state was told
        self.last: OpenAnswer | None = None

    def look(self, ask: Ask) -> None:
        """One sweep."""
        more = True
        while more:
            jobs = self.heads.missing(self.jobs, self.wall) if self.cursor else self.jobs
            answer = ask(ListOpen(jobs=jobs, since=self.cursor))
            self.wall = answer.wall
            if answer.whole and self.cursor:  # it cannot be served
                self.cursor = ""
                continue
            if answer.whole:
                self.rows, self.heads = {}, Heads()
            self.rows.update({row.run: shown(row) for row in answer.runs})
            for run in answer.gone:
                self.rows.pop(run, None)
            self.told_at.update(dict.fromkeys(answer.jobs, answer.wall))
            self.heads.take(answer, self.jobs)
            self.cursor, self.last, more = answer.cursor, answer, answer.more
            while answer.after is not None:
                answer = ask(Page(after=answer.after))
                self.rows.update({row.run: shown(row) for row in answer.runs})
        if self.last is not None and self.last.recovering_s > 0:
            self.cursor = ""  # as a node does: what it knows may be forgotten

    def knows(self) -> dict[str, Any]:
        """All that it knows."""
        assert self.last is not None
        heads = self.last
        jobs = {job: {name: getattr(state, name) for name in JobState.__slots__} for job, state in heads.jobs.items()}
        return {"rows": self.rows, "jobs": jobs, "current": heads.current, "holds": texts(heads)}

    def differs(self, other: Mirror) -> list[str]:
        """What it does not know as one that has just begun. A fire time that lay ahead of what may be claimed is not
        the job's last one; when it comes, nothing changes in the ledger: the next whole pass tells it.
        """
        ours, theirs = self.knows(), other.knows()
        for job, state in theirs["jobs"].items():
            if state["last_fire_at"] > self.told_at[job] + CLAIM_AHEAD_S:
                ours["jobs"][job]["last_fire_at"] = state["last_fire_at"]
        return [f"{name}: {ours[name]}, not {theirs[name]}" for name in ours if ours[name] != theirs[name]]


def texts(answer: OpenAnswer) -> dict[str, str]:
    """The holds as a ledger keeps them."""
    return {key: hold.text() for key, hold in answer.holds.items()}


class Follows(RuleBasedStateMachine):
    """Nodes that sweep with cursors: one of the ledger, one of the rules in memory."""

    ledger: Ledger
    memory: MemoryLedger

    def __init__(self) -> None:
        super().__init__()
        self.mirrors: list[Mirror] = []
        self.steps = 0

    def before_call(self) -> None:
        """Called just before each call to both."""

    def begin_again(self) -> None:
        """The clock was set, or somebody wrote who numbers nothing: nodes read everything."""
        self.mirrors = []

    @invariant()  # a rule more would make the rare moves of the other rules rarer
    def a_node_sweeps_on(self) -> None:
        self.steps += 1
        if self.steps % SWEEPS_EVERY:
            return
        full = self.steps % (3 * SWEEPS_EVERY) > 0
        asks = (self.ledger.ask, self.memory.ask)
        self.mirrors = self.mirrors or [Mirror(("a", "b")) for _ in asks]
        for mirror, ask in zip(self.mirrors, asks, strict=True):
            self.before_call()
            mirror.look(ask)
        assert self.mirrors[0].knows() == self.mirrors[1].knows()
        if full:
            for mirror, ask in zip(self.mirrors, asks, strict=True):
                other = Mirror(mirror.jobs)
                other.look(ask)
                assert mirror.differs(other) == []
