"""Published revisions: all members have read what comes into force, at one instant, and nothing older follows."""

from __future__ import annotations

from typing import Any

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Activate, Adopt
from coordd.core.ledger.revision.rule import Adopting
from coordd.core.ledger.revision.text import InForce
from coordd.core.ledger.rows import REVISION, Hold
from coordd.core.ledger.rules import Rules
from coordd.core.ledger.words import DIFFERS, OK
from coordd.services.backends.published import PublishedSource
from simulator.mutants.mutant import Mutant, instead
from simulator.publishing import PUBLISHED


@instead(PublishedSource, "_against")
def _the_silent_agree(real: Any, self: PublishedSource, *votes: Any) -> Any:
    refused, _ = real(self, *votes)
    return refused, []


@instead(PublishedSource, "_against")
def _a_refusal_is_not_heard(real: Any, self: PublishedSource, *votes: Any) -> Any:
    _, silent = real(self, *votes)
    return [], silent


@instead(Adopting, "adopt")
def _half_of_it_counts_later(real: Any, self: Adopting, store: Any, said: Adopt, now: Any) -> Answer:
    jobs = said.jobs.splitlines()
    return real(  # type: ignore[no-any-return]  # the rule's answer
        self,
        store,
        Adopt(
            number=said.number,
            digest=said.digest,
            replaces=said.replaces,
            by=said.by,
            jobs="\n".join(jobs[: len(jobs) // 2]),
        ),
        now,
    )


@instead(Adopting, "adopt")
def _whoever_asks_last_wins(_real: Any, self: Adopting, store: Any, said: Adopt, now: Any) -> Answer:
    for name, digest, schedule in [line.split(" ") for line in said.jobs.splitlines()]:
        self.activate(store, Activate(job=name, digest=digest, schedule=schedule, how="person", by=said.by), now)
    note = InForce(said.number, said.digest).text()
    self._put_hold(store, REVISION, Hold(by=said.by, uid=said.uid, at=now.wall, note=note))
    return Answer(OK, token=said.number)


@instead(Adopting, "_withdrawn")
def _a_revision_withdraws_nothing(_real: Any, _self: Adopting, *_: Any) -> list[str]:
    return []


@instead(Rules, "_opens")
def _any_definition_opens(real: Any, self: Rules, store: Any, job: Any, of: Any, now: Any) -> Any:
    """The ledger takes the word of a node that does not have the revision in force yet."""
    answer = real(self, store, job, of, now)
    return None if answer is not None and answer.word == DIFFERS else answer


MUTANTS = (
    Mutant(
        "a revision comes into force before all members have read it",
        "§6 adopt: every living member has voted",
        "RV",
        _the_silent_agree,
        (PUBLISHED,),
    ),
    Mutant(
        "a revision comes into force that a member cannot use",
        "§6 adopt: every living member has voted for it",
        "RV",
        _a_refusal_is_not_heard,
        (PUBLISHED,),
    ),
    Mutant(
        "a revision comes into force at two instants",
        "§6 adopt: all its definitions in one step",
        "RV",
        _half_of_it_counts_later,
        (PUBLISHED,),
    ),
    Mutant(
        "a job that a revision lacks stays",
        "§6 adopt: every other definition is withdrawn",
        "RV",
        _a_revision_withdraws_nothing,
        (PUBLISHED,),
    ),
    Mutant(
        "an older revision replaces a newer one",
        "§6 adopt: above the one in force, which the caller must name",
        "RV",
        _whoever_asks_last_wins,
        (PUBLISHED, "pause_daemon", "freeze"),
    ),
    Mutant(
        "a definition that does not count any more opens runs",
        "§6 The definition that counts: others are refused",
        "RV N",
        _any_definition_opens,
        (PUBLISHED, "ledger_deaf"),
    ),
)
