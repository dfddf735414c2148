"""[breaker] of a job file: what it says, what the ledger is told of it, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.test_jobfile import SPARK, load_text
from coordd.core.breaker import Loud
from coordd.core.jobs.job import Breaker, Job
from coordd.core.jobs.limits import claimed_policy
from coordd.core.ledger.breaker.text import Rule, rule_in
from coordd.core.ledger.sound import policy_fault


def job(directory: Path, text: str) -> Job:
    found = load_text(directory, SPARK + "[breaker]\n" + text)
    assert "j" not in found.problems, found.problems
    return found.jobs["j"]


def rule(directory: Path, text: str) -> Rule:
    policy = claimed_policy(job(directory, text), "", "edge-1.1")
    assert policy_fault(policy.pack()) == ""
    found = rule_in(policy.limits)
    assert found is not None
    return found


def test_a_job_has_none_unless_it_says_so(tmp_path: Path) -> None:
    plain = load_text(tmp_path, SPARK).jobs["j"]
    assert plain.breaker is None
    assert "breaker" not in claimed_policy(plain, "", "edge-1.1").limits


def test_the_documented_defaults(tmp_path: Path) -> None:
    assert job(tmp_path, "").breaker == Breaker()
    found = rule(tmp_path, "")
    assert found.groups == ((3, ("failure", "lost", "timeout")),)
    assert (found.window_ms, found.open_for_ms, found.open_for_max_ms) == (0, 900_000, 86_400_000)
    assert (found.growth, found.when_open, found.enforce) == ("fixed", "prevent", True)


def test_how_loud_it_is_changes_no_run(tmp_path: Path) -> None:
    said = job(tmp_path, 'loud = { after = 1, within = "1m", for = "1h" }\n')
    assert said.breaker == Breaker(loud=Loud(1, 60.0, 3600.0))
    assert said.digest == job(tmp_path, "").digest
    assert said.digest != job(tmp_path, "after = 2\n").digest


def test_states_exit_codes_and_patterns_count_together(tmp_path: Path) -> None:
    text = 'after = 2\non = ["lost", 75, -9, "refused"]\nopen_for = "1.5s"\nenforce = false\n'
    breaker = job(tmp_path, text).breaker
    assert breaker is not None
    assert breaker.patterns == ("refused",)
    found = rule(tmp_path, text)
    assert found.groups == ((2, ("lost", "75", "-9", "matched")),)
    assert (found.open_for_ms, found.enforce) == (1500, False)


def test_a_table_says_of_each_how_many(tmp_path: Path) -> None:
    assert rule(tmp_path, "on = { failure = 3, lost = 1, 75 = 2 }\n").groups == (
        (3, ("failure",)),
        (1, ("lost",)),
        (2, ("75",)),
    )
    (problem,) = load_text(tmp_path, SPARK + "[breaker]\nafter = 2\non = { lost = 1 }\n").problems["j"]
    assert (problem.key, problem.severity) == ("breaker.after", "warning")


def test_the_longest_time_is_never_below_the_first(tmp_path: Path) -> None:
    assert rule(tmp_path, 'open_for = "3d"\n').open_for_max_ms == 3 * 86_400_000


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        (SPARK + "[breaker]\nfailures = 3\n", "breaker.failures", "unknown key"),
        (SPARK + '[breaker]\non = ["failed"]\n', "breaker.on", 'did you mean "failure"?'),
        (SPARK + '[breaker]\non = ["revoked"]\n', "breaker.on", "that is not a failure of a run"),
        (SPARK + '[breaker]\non = ["("]\n', "breaker.on", "expected a regular expression"),
        (SPARK + "[breaker]\non = [0]\n", "breaker.on", "expected exit codes from 1 to 255"),
        (SPARK + "[breaker]\non = []\n", "breaker.on", "found nothing"),
        (SPARK + "[breaker]\non = { success = 1 }\n", "breaker.on", "expected failure, lost, timeout or an exit code"),
        (SPARK + "[breaker]\non = { failure = 0 }\n", "breaker.on", "1 to 100"),
        (SPARK + "[breaker]\nafter = 101\n", "breaker.after", "100"),
        (SPARK + '[breaker]\nopen_for = "2d"\nopen_for_max = "1d"\n', "breaker.open_for_max", "at least open_for"),
        (SPARK + "[breaker]\nloud = { after = 0 }\n", "breaker.loud", "after: expected a whole number"),
        (SPARK + '[breaker]\ngrowth = "quadratic"\n', "breaker.growth", "exponential"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, key: str, said: str) -> None:
    (problem,) = load_text(tmp_path, text).problems["j"]
    assert problem.key == key
    assert said in problem.message
    assert problem.severity == "error"
