"""A revision of the job definitions comes into force in one step, on each kind of ledger."""

from __future__ import annotations

import pytest
from support.ledger_calls import LEASE_S, Nodes

from coordd.core.jobs.job import scheduled_run
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import Activate, Adopt, Claim, Keep, ListOpen
from coordd.core.ledger.revision.text import GONE, NO_REVISION, InForce, definitions, read
from coordd.core.ledger.rows import REVISION
from coordd.core.ledger.words import AttemptNumber

HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def known(nodes: Nodes) -> None:
    """The ledger learns of the jobs now."""
    nodes.ledger.ask(ListOpen(jobs=("sales", "other")))


def adopt(
    nodes: Nodes, number: int, jobs: dict[str, str], replaces: int = -1, gone: tuple[str, ...] = (), newest: bool = True
) -> Answer:
    """Each job's schedule is its definition: a new definition is a new schedule."""
    text = definitions({name: (digest, f"schedule-of-{digest}") for name, digest in jobs.items()}, gone)
    replaced = number - 1 if replaces < 0 else replaces
    asked = Adopt(number=number, digest=f"r{number}", replaces=replaced, by="ann", uid=7, jobs=text, newest=newest)
    return nodes.ask(asked)


def swept(nodes: Nodes) -> OpenAnswer:
    answer = nodes.ledger.ask(ListOpen(jobs=("sales", "other")))
    assert isinstance(answer, OpenAnswer)
    return answer


def claim(nodes: Nodes, job: str, fire_at: float, digest: str) -> str:
    of = nodes.of(scheduled_run(job, fire_at), fire_at=fire_at, digest=digest, overlap="allow")
    return nodes.ask(Claim(of=of, attempt=AttemptNumber(0), nonce="n1", node="edge-1.10", lease_s=LEASE_S)).word


def test_all_definitions_of_a_revision_count_from_one_instant(nodes: Nodes) -> None:
    adopt(nodes, 1, {"sales": "s1", "other": "t1"})
    nodes.clock.step(HOUR_S)
    at = nodes.clock.wall

    assert adopt(nodes, 2, {"sales": "s2", "other": "t2"}).word == "ok"

    answer = swept(nodes)
    assert {name: one.digest for name, one in answer.current.items()} == {"sales": "s2", "other": "t2"}
    assert {round(one.counts_from, 3) for one in answer.current.values()} == {round(at, 3)}
    hold = answer.holds[REVISION]
    assert (read(hold.note), hold.by, hold.uid, round(hold.at, 3)) == (InForce(2, "r2"), "ann", 7, round(at, 3))


def test_no_fire_time_is_opened_by_two_definitions(nodes: Nodes) -> None:
    """Half of the nodes still have revision 1."""
    adopt(nodes, 1, {"sales": "s1"})
    nodes.clock.step(HOUR_S)
    assert claim(nodes, "sales", nodes.clock.wall, "s1") == "granted"
    adopt(nodes, 2, {"sales": "s2"})
    nodes.clock.step(60.0)

    assert claim(nodes, "sales", nodes.clock.wall, "s1") == "differs"
    assert claim(nodes, "sales", nodes.clock.wall, "s2") == "granted"
    assert claim(nodes, "sales", nodes.clock.wall - 90.0, "s2") == "finished"  # it was due before the definition


def test_a_job_that_a_revision_lacks_is_opened_by_nobody(nodes: Nodes) -> None:
    adopt(nodes, 1, {"sales": "s1", "other": "t1"})
    adopt(nodes, 2, {"sales": "s1"})
    nodes.clock.step(HOUR_S)

    assert claim(nodes, "other", nodes.clock.wall, "t1") == "differs"
    assert claim(nodes, "sales", nodes.clock.wall, "s1") == "granted"


def test_a_job_that_comes_back_counts_from_then(nodes: Nodes) -> None:
    adopt(nodes, 1, {"sales": "s1", "other": "t1"})
    adopt(nodes, 2, {"sales": "s1"})
    nodes.clock.step(HOUR_S)
    while_away = nodes.clock.wall
    nodes.clock.step(60.0)
    adopt(nodes, 3, {"sales": "s1", "other": "t1"})
    nodes.clock.step(60.0)

    assert claim(nodes, "other", while_away, "t1") == "finished"
    assert claim(nodes, "other", nodes.clock.wall, "t1") == "granted"


def restored(nodes: Nodes, job: str, digest: str, revision: int, sequence: int = 9) -> str:
    """A node tells a ledger that went back which definition it had."""
    return nodes.ask(
        Activate(
            job=job,
            digest=digest,
            schedule=f"schedule-of-{digest}",
            how="restored",
            by="ann",
            sequence=sequence,
            counts_from=nodes.clock.wall - HOUR_S,
            revision=revision,
        )
    ).word


def test_a_definition_of_an_earlier_revision_is_not_restored(nodes: Nodes) -> None:
    """The ledger had forgotten both. A node with revision 1 was late."""
    assert adopt(nodes, 2, {"sales": "s2"}, replaces=0).word == "ok"

    assert restored(nodes, "other", "t1", revision=1) == "differs"
    assert restored(nodes, "sales", "s1", revision=1) == "differs"
    assert {name: one.digest for name, one in swept(nodes).current.items()} == {"sales": "s2"}
    assert restored(nodes, "other", "t1", revision=2) == "ok"
    assert restored(nodes, "sales", "s3", revision=3) == "ok"


def test_a_definition_that_is_of_no_revision_is_restored(nodes: Nodes) -> None:
    """The nodes read job files again, or have the version before."""
    adopt(nodes, 2, {"sales": "s2"}, replaces=0)

    assert restored(nodes, "other", "t1", revision=0) == "ok"


def test_a_definition_that_the_ledger_has_from_an_earlier_revision_is_withdrawn(nodes: Nodes) -> None:
    """The ledger had forgotten that revision, and a node has restored its definition."""
    restored(nodes, "other", "t1", revision=1)
    assert adopt(nodes, 2, {"sales": "s2"}, replaces=0).word == "ok"

    assert swept(nodes).current["other"].digest == GONE
    nodes.clock.step(60.0)
    assert claim(nodes, "other", nodes.clock.wall, "t1") == "differs"


def test_a_job_whose_definition_is_forgotten_is_withdrawn_if_it_had_a_schedule(nodes: Nodes) -> None:
    """It would come back as if it had never been away."""
    nodes.clock.step(60.0)
    assert claim(nodes, "other", nodes.clock.wall, "t1") == "granted"
    adopt(nodes, 2, {"sales": "s2"}, replaces=0)
    nodes.clock.step(60.0)
    adopt(nodes, 3, {"sales": "s2", "other": "t1"})

    assert claim(nodes, "other", nodes.clock.wall - 30.0, "t1") == "finished"


def test_a_job_without_a_schedule_is_not_withdrawn(nodes: Nodes) -> None:
    """Who runs it on demand is not told of a definition that counts."""
    adopt(nodes, 1, {"sales": "s1"})

    assert "other" not in swept(nodes).current


def test_an_older_revision_that_is_brought_back_withdraws_only_what_it_lists(nodes: Nodes) -> None:
    """Another node has restored a job that a later revision has."""
    restored(nodes, "other", "t1", revision=3)
    due = nodes.clock.wall
    assert adopt(nodes, 2, {"sales": "s1"}, replaces=0, gone=("third",), newest=False).word == "ok"
    nodes.clock.step(60.0)
    assert adopt(nodes, 3, {"sales": "s1", "other": "t1"}).word == "ok"

    assert claim(nodes, "other", due - 30.0, "t1") == "finished"  # before the ledger heard of the job
    assert claim(nodes, "other", nodes.clock.wall - 30.0, "t1") == "granted"  # no fire time is lost


def test_a_definition_that_counts_is_ok_whatever_revision_it_comes_from(nodes: Nodes) -> None:
    adopt(nodes, 2, {"sales": "s2"}, replaces=0)

    assert restored(nodes, "sales", "s2", revision=1) == "ok"


def test_a_job_is_withdrawn_once(nodes: Nodes) -> None:
    adopt(nodes, 1, {"sales": "s1", "other": "t1"})
    adopt(nodes, 2, {"sales": "s1"})
    at = swept(nodes).current["other"]
    nodes.clock.step(60.0)
    adopt(nodes, 3, {"sales": "s2"})

    assert swept(nodes).current["other"] == at


def test_what_has_not_changed_keeps_its_place(nodes: Nodes) -> None:
    adopt(nodes, 1, {"sales": "s1", "other": "t1"})
    nodes.clock.step(HOUR_S)
    due = nodes.clock.wall
    nodes.clock.step(5.0)
    adopt(nodes, 2, {"sales": "s1", "other": "t2"})

    assert claim(nodes, "sales", due, "s1") == "granted"  # no fire time is lost
    assert claim(nodes, "other", due, "t2") == "finished"


def test_a_revision_never_replaces_a_newer_one(nodes: Nodes) -> None:
    adopt(nodes, 1, {"sales": "s1"})
    adopt(nodes, 3, {"sales": "s3"}, replaces=1)

    late = adopt(nodes, 2, {"sales": "s2"}, replaces=1)

    assert (late.word, late.token) == ("differs", 3)
    assert adopt(nodes, 2, {"sales": "s2"}, replaces=3).word == "differs"
    assert swept(nodes).current["sales"].digest == "s3"


def test_of_two_callers_one_is_refused(nodes: Nodes) -> None:
    adopt(nodes, 1, {"sales": "s1"})
    adopt(nodes, 2, {"sales": "s2"})

    assert adopt(nodes, 3, {"sales": "s3"}, replaces=1).token == 2  # it had not heard of 2
    assert adopt(nodes, 2, {"sales": "other"}, replaces=1).word == "ok"  # the same revision: the answer was lost
    assert swept(nodes).current["sales"].digest == "s2"


def test_another_content_under_the_same_number_is_refused(nodes: Nodes) -> None:
    adopt(nodes, 1, {"sales": "s1"})

    answer = nodes.ask(Adopt(number=1, digest="other", replaces=0, by="ann", jobs="sales s9 x"))

    assert (answer.word, answer.token) == ("differs", 1)
    assert nodes.ask(Adopt(number=1, digest="other", replaces=1, by="ann", jobs="sales s9 x")).word == "differs"


def test_a_damaged_note_is_no_revision(nodes: Nodes) -> None:
    nodes.ask(Keep(key=REVISION, held=True, by="ann\nb", note="x"))

    assert adopt(nodes, 4, {"sales": "s4"}, replaces=0).word == "ok"


@pytest.mark.parametrize("note", ["", "7", "x r7", "7.5 r7", "-7 r7", "\u0667 r7"])
def test_a_note_that_is_no_revision(note: str) -> None:
    assert read(note) == NO_REVISION
    assert read("7 r7") == InForce(7, "r7")
