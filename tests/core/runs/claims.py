"""Inputs and outputs of a node, for the tests of a pursuit."""

from __future__ import annotations

from support.small_cluster import SETTINGS, Lone, asked_for, job, open_run

from coordd.core.jobs.job import Job
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenRun
from coordd.core.ledger.requests import Claim
from coordd.core.ledger.words import GRANTED, OK, PENDING, STARTED
from coordd.core.runs.pursued import Pursuit
from coordd.core.wire.events import Action, Candidacy, Task, WorkerElect

RUN = "sales#1"
RENEW_S = SETTINGS.renew_interval_s
LEASE_S = 60.0


def pursued(lone: Lone, run: str = RUN) -> Pursuit:
    return lone.node.pursuits.pursuits[run]


def claims(lone: Lone, run: str = RUN) -> list[Claim]:
    """Every claim so far for this run."""
    return [claim for claim in lone.requests(Claim) if claim.of.run == run]


def out(lone: Lone, run: str = RUN) -> bool:
    """True if a claim waits for its answer."""
    return any(claim.of.run == run for claim in lone.waiting(Claim))


def claiming(*jobs: Job) -> Lone:
    """A node that is alone and has just sent a claim for a triggered run."""
    lone = Lone(*(jobs or (job(),))).ready()
    lone.do(lone.node.trigger, asked_for(RUN, lone.node.ctx.jobs["sales"]), 1)
    lone.answer("register", Answer(OK, state=PENDING))
    return lone


def granted(token: int = 7, left_s: float = LEASE_S, **fields: object) -> Answer:
    return Answer(GRANTED, token=token, left_s=left_s, args="{}", **fields)  # type: ignore[arg-type]  # typed where the keywords are made


def started(
    beat: int = 1, *, left_s: float = LEASE_S, attempt: int = 0, token: int = 7, state: str = STARTED
) -> OpenRun:
    """The row in the form in which the sweep shows it while b holds it."""
    return open_run(RUN, state, attempt=attempt, token=token, nonce="theirs", node="b.1", beat=beat, left_s=left_s)


def sweeps(lone: Lone, seconds: float, *rows: OpenRun) -> None:
    """During that time (seconds) every sweep shows these rows."""
    end = lone.now.mono + seconds
    while lone.now.mono + RENEW_S <= end + 1e-6:
        lone.wait(RENEW_S)
        lone.sweep(*rows)


def hears_an_elect(lone: Lone, run: str = RUN, attempt: int = 0, sender: str = "b.1", clock: int = 0) -> None:
    action = Action("sales", run, attempt, digest="d1")
    view = ("a.1", sender)
    said = WorkerElect(
        id=f"{run}/{attempt}", topic="command", candidacy=Candidacy(0, clock, sender), view=view, action=action
    )
    lone.hear(sender, said)


def of_b(kind: type[Task], *, attempt: int = 0, token: int = 7, run: str = RUN, **fields: object) -> Task:
    return kind(uuid="u", name="sales", run=run, attempt=attempt, token=token, nonce="theirs", node="b.1", **fields)  # type: ignore[arg-type]  # typed where the keywords are made
