"""The judge of `make chaos` notices each violation. Each test puts one violation into a good record."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from system.lab.cluster import Entry

from chaos import checker, cluster, load, trial
from chaos.checker import Answer, Record, Verdict, judge
from chaos.load import Accepted, Edit
from chaos.nemesis import Fault

TICK = "tick@2026-01-01T00:00:00Z"
DUE_WALL = 1767225600.0


def said(word: str, at: float, *, run: str = "asked#1", attempt: int = 0, token: int = 10, node: str = "n1") -> Entry:
    """One line of a program. Its pid is its token. Its wall clock is ``DUE_WALL`` plus its other clock."""
    return Entry(run, attempt, token, node, word, at, DUE_WALL + at, token)


def fault(
    kind: str, began: float, until: float, *, cut_off: str = "", forgets: bool = False, before: str = ""
) -> Fault:
    before_start = [(before, 0, 10)] if before else []
    alone = (cut_off,) if cut_off else ()
    return Fault(kind, "ledger", "n1", "", began, began + 0.1, until, before_start, alone, forgets)


def judged(
    entries: Sequence[Entry],
    *,
    beats: dict[int, float] | None = None,
    expected: Sequence[str] = (),
    accepted: Sequence[str] = (),
    faults: Sequence[Fault] = (),
    children: Sequence[tuple[int, int, float]] = (),
    edits: Sequence[Edit] = (),
    **answers: Answer,
) -> Verdict:
    alive = {(token, token): at for token, at in (beats or {}).items()}
    triggers = [Accepted(run, "n1", "cluster", 1.0) for run in accepted]
    said_of = {name.replace("_", "#"): answer for name, answer in answers.items()}
    return judge(Record(entries, alive, expected, triggers, faults, said_of, children, edits))


GOOD = [said("start", 1.0), said("end", 2.0)]
LOST = [said("start", 1.0)]
TAKEN_OVER = [*LOST, said("start", 12.0, attempt=1, token=20, node="n2"), said("end", 13.0, attempt=1, token=20)]


def test_a_good_record_has_no_violation() -> None:
    verdict = judged(
        [
            *TAKEN_OVER[:2],
            said("end", 13.0, attempt=1, token=20, node="n2"),
            said("start", 0.1, run=TICK, token=7),
            said("end", 0.3, run=TICK, token=7),
        ],
        beats={10: 4.0},
        expected=[TICK],
        accepted=["asked#1"],
    )

    assert verdict.violations == []
    assert (verdict.counts["launches"], verdict.counts["runs"], verdict.counts["takeovers"]) == (3, 2, 1)
    assert verdict.takeovers_s == [8.0]


@pytest.mark.parametrize(
    ("entries", "beats", "words"),
    [
        ([*LOST, said("start", 3.0, token=11), said("end", 4.0, token=11)], {}, "launched 2 times"),
        (TAKEN_OVER, {10: 12.5}, "two attempts alive"),
        ([*TAKEN_OVER, said("overlap", 12.0, attempt=1, token=20)], {}, "found an earlier attempt alive"),
        ([*GOOD, said("crossed", 1.0)], {}, "found another run of its job alive"),
        ([*LOST, said("start", 12.0, attempt=1, token=9), said("end", 13.0, attempt=1, token=9)], {}, "did not rise"),
    ],
)
def test_a_doctored_launch_is_seen(entries: list[Entry], beats: dict[int, float], words: str) -> None:
    verdict = judged(entries, beats=beats)

    assert [words in violation for violation in verdict.violations] == [True]


@pytest.mark.parametrize(
    ("last", "faults", "words"), [(12.5, [], "a child of the attempt before is alive"), (11.9, [], "")]
)
def test_a_child_beside_the_next_attempt_is_seen(last: float, faults: list[Fault], words: str) -> None:
    verdict = judged(TAKEN_OVER, children=[(10, 10, last)], faults=faults)

    assert [words in violation for violation in verdict.violations] == [True] * bool(words)
    assert verdict.counts["children that made themselves daemons"] == 1


@pytest.mark.parametrize(
    ("last", "struck", "words"),
    [
        (2.0 + checker.CHILD_S + 0.1, "", "a child was left for"),
        (2.0 + checker.CHILD_S - 0.1, "", ""),
        (2.0 + checker.CHILD_S + 0.1, "n1", ""),
        (2.0 + checker.CHILD_S + 0.1, "n2", "a child was left for"),
    ],
)
def test_a_child_that_is_left_after_its_program_is_seen(last: float, struck: str, words: str) -> None:
    harm = Fault("stop daemon, long", "node", struck, "", 3.0, 3.1, 9.0, [], (), False)
    verdict = judged(GOOD, children=[(10, 10, last)], faults=[harm] if struck else [])

    assert [words in violation for violation in verdict.violations] == [True] * bool(words)


@pytest.mark.parametrize(
    ("edits", "violations"),
    [
        ([("edited-tick", 6.0, DUE_WALL - 50.0)], 0),
        ([("edited-tick", 11.0, DUE_WALL - 50.0)], 1),  # no fire time of this schedule
        ([("edited-tick", 11.0, DUE_WALL - 50.0), ("edited-tick", 6.0, DUE_WALL + 1.0)], 1),  # the edit came later
        ([("other", 11.0, DUE_WALL - 50.0)], 0),
    ],
)
def test_a_fire_time_before_its_definition_is_seen(edits: list[tuple[str, float, float]], violations: int) -> None:
    run = TICK.replace("tick", "edited-tick")
    verdict = judged([said("start", 1.0, run=run), said("end", 2.0, run=run)], edits=[Edit(*edit) for edit in edits])

    assert [run in violation for violation in verdict.violations] == [True] * violations


def test_a_run_that_is_held_may_not_be_launched_again() -> None:
    entries = [entry._replace(run="hold-asked#1") for entry in TAKEN_OVER]

    assert any("holds, and was launched again" in violation for violation in judged(entries).violations)


def test_a_success_is_launched_again_only_where_it_could_not_be_reported() -> None:
    again = [*GOOD, said("start", 12.0, attempt=1, token=20), said("end", 13.0, attempt=1, token=20)]

    (violation,) = judged(again).violations
    assert "nothing kept from being reported" in violation
    assert judged(again, faults=[fault("power cut", 2.1, 9.0)]).violations == []


def test_a_run_before_its_time_is_seen() -> None:
    (violation,) = judged([said("start", -0.5, run=TICK), said("end", 1.0, run=TICK)]).violations

    assert "0.50 s before its time" in violation


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("", "", "the ledger does not know it"),
        ("success", "", "no program of it came to its end"),
        ("started", "", "is not over"),
        ("pending", "", "is not over"),
        ("rejected", "", "without a reason"),
        ("unknown", "its lease lapsed", "its job does not hold"),
    ],
)
def test_what_never_ran_needs_an_explanation(state: str, reason: str, words: str) -> None:
    (violation,) = judged([], accepted=["asked#1"], asked_1=Answer(state, reason, "because")).violations

    assert words in violation


def test_what_never_ran_and_is_explained_is_no_violation() -> None:
    verdict = judged([], accepted=["asked#1"], asked_1=Answer("rejected", "overlap: asked#0", "because"))

    assert verdict.violations == []
    assert verdict.states == {"rejected": 1}


def test_nobody_asked_is_no_explanation() -> None:
    assert judged([], expected=[TICK]).violations


def test_a_second_launch_is_excused_by_the_log_of_faults_alone() -> None:
    again = [*LOST, said("start", 40.0, token=20, node="n2"), said("end", 41.0, token=20, node="n2")]
    behind_a_cut = fault("promote behind a cut", 0.5, 45.0, cut_off="n1", forgets=True)

    assert judged(again, faults=[behind_a_cut]).violations == []
    assert judged(again, faults=[behind_a_cut._replace(cut_off=())]).violations
    assert judged(again, faults=[behind_a_cut._replace(until=20.0)]).violations, "it could tell in the quarantine"
    assert judged(again, faults=[behind_a_cut._replace(forgets=False)]).violations


def test_one_fault_explains_a_bounded_number_of_launches_and_of_runs() -> None:
    behind_a_cut = fault("promote behind a cut", 0.5, 45.0, cut_off="n1", forgets=True)

    def found(launches: int, triggers: int) -> list[str]:
        entries, names = [], [f"asked#{number}" for number in range(launches)]
        for number, run in enumerate(names):
            entries += [
                said("start", 1.0, run=run, token=10 + number),
                said("start", 40.0, run=run, token=100 + number, node="n2"),
                said("end", 41.0, run=run, token=100 + number, node="n2"),
            ]
        lost = [f"asked#lost-{number}" for number in range(triggers)]
        unknown: dict[str, Any] = dict.fromkeys([name.replace("#", "_") for name in lost], Answer("", "", ""))
        return judged(entries, accepted=lost, faults=[behind_a_cut], **unknown).violations

    assert found(checker.LAUNCHES_LOST, checker.RUNS_LOST) == []
    (violation,) = found(checker.LAUNCHES_LOST + 1, 1)
    assert f"explains {checker.LAUNCHES_LOST + 1} launches" in violation
    (violation,) = found(1, checker.RUNS_LOST + 1)
    assert f"explains {checker.RUNS_LOST + 1} runs" in violation


@pytest.mark.parametrize("word", ["overlap", "crossed"])
def test_a_lock_that_is_held_is_excused_by_the_grant_that_was_lost(word: str) -> None:
    """A cut-off promotion that could not have lost that grant excused every overlap around it."""
    holder = "asked#1" if word == "overlap" else "asked#2"
    found = [said(at, 40.0, attempt=1, token=20, node="n2") for at in ("start", word, "end")]
    entries = [said("start", 1.0, run=holder), said("end", 39.0, run=holder), *found]
    behind_a_cut = fault("promote behind a cut", 0.5, 45.0, cut_off="n1", forgets=True)

    def seen(*faults: Fault, of: Sequence[Entry] = entries) -> bool:
        return any("alive" in violation for violation in judged(of, faults=faults).violations)

    assert not seen(behind_a_cut)
    assert seen()
    assert seen(behind_a_cut._replace(cut_off=("n3",))), "the holder's node was not cut off"
    assert seen(behind_a_cut._replace(began=20.0, struck=20.1)), "the holder's grant was old"
    assert seen(behind_a_cut, of=found), "nobody held it"


def test_what_was_rejected_while_writes_were_lost_may_be_forgotten() -> None:
    rejected = "forbid-tick@2026-01-01T00:00:07Z"
    lost = fault("promote behind a cut", 6.0, 20.0, forgets=True)

    assert judged(GOOD, expected=[rejected], faults=[lost]).violations == []
    assert judged(GOOD, expected=[rejected], faults=[lost._replace(began=30.0, struck=30.1)]).violations
    assert judged(GOOD, expected=["tick@2026-01-01T00:00:05Z"], faults=[lost]).violations, "nobody rejects that"
    assert judged(GOOD, expected=[rejected], faults=[lost._replace(forgets=False)]).violations, "nothing was lost"


def test_a_trigger_may_be_forgotten_only_by_a_ledger_that_lost_writes() -> None:
    killed = fault("kill ledger", 2.0, 5.0, forgets=True)  # the trigger was accepted at 1.0

    assert judged([], accepted=["asked#1"], faults=[killed], asked_1=Answer("", "", "")).violations == []
    alone = killed._replace(forgets=False)
    assert judged([], accepted=["asked#1"], faults=[alone], asked_1=Answer("", "", "")).violations


def test_a_fault_between_claim_and_start_counts_if_the_program_had_not_started() -> None:
    struck = [fault("power cut", 0.5, 5.0, before="asked#1")]

    assert judged(TAKEN_OVER, faults=struck).counts["faults between claim and started"] == 1
    early = [TAKEN_OVER[0]._replace(at=0.4), *TAKEN_OVER[1:]]
    assert judged(early, faults=struck).counts["faults between claim and started"] == 0


def test_the_judges_terms_are_those_of_the_cluster() -> None:
    assert cluster.TIMING["lease"] + 10.0 < checker.QUARANTINE_S < cluster.TIMING["lease"] + 20.0
    assert float(cluster.SENTINEL_SETTINGS["min_replicas_max_lag"]) < checker.LAG_S


def test_what_an_edit_leaves_to_nobody_ends_while_the_trial_still_waits() -> None:
    written: dict[str, dict[str, Any]] = {}
    arena = SimpleNamespace(chaos_job=lambda name, **keys: written.update({name: keys}))
    jobs = load.Jobs(arena, 0.0, 60.0)  # type: ignore[arg-type]  # Jobs uses it only to write job files
    jobs.write()
    jobs.edit_schedule(random.Random(0))

    (edited,) = [job.name for job in load.JOBS if job.edited]
    within_s = float(written[edited].get("start_within", "3600s").removesuffix("s"))
    assert 2 * cluster.TIMING["lease"] + checker.QUARANTINE_S < within_s < trial.SETTLE_S / 2
