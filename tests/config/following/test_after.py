"""`after` of job files: what it may say, and jobs that can never meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordd.config.jobfile import JobSet, load_jobs
from coordd.config.sections import Config, HistoryConfig, NodeConfig
from coordd.config.tables import read
from coordd.core.jobs.job import After

CONFIG = Config(node=NodeConfig(name="edge-1"))
COMMAND = '[command]\nargv = ["/bin/true"]\n'
DAILY, HOURLY, NIGHTLY = ('schedule = "0 2 * * *"\n', 'schedule = "every 1h"\n', 'schedule = "0 4 * * *"\n')


def load(directory: Path, config: Config = CONFIG, /, **jobs: str) -> JobSet:
    for name, text in jobs.items():
        (directory / f"{name}.toml").write_text(text + COMMAND)
    return load_jobs(str(directory), config)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('["a"]', After(("a",))),
        ('{ all = ["a", "b"], period = "1d" }', After(("a", "b"), period_s=86400.0)),
        ('{ any = ["a"], on = "failure", within = "6h" }', After(("a",), needs="any", on="failure", within_s=21600.0)),
        ('{ all = ["a"], on = "done" }', After(("a",), on="done")),
    ],
)
def test_the_parents_are_a_list_or_a_table(tmp_path: Path, said: str, expected: After) -> None:
    found = load(tmp_path, a=DAILY, b=HOURLY, j=f"after = {said}\n")

    assert found.problems == {}
    assert found.jobs["j"].after == expected


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("3", "expected names of jobs"),
        ("[]", "expected 1 to 100 names of jobs, found 0"),
        ('["a", "a"]', 'expected each job once, found "a" twice'),
        ('["j"]', 'the job waits for itself: "j"'),
        ('["a b"]', "expected"),
        ('{ all = ["a"], any = ["a"] }', "found both all and any"),
        ('{ on = "done" }', "found neither all nor any"),
        ('{ all = ["a"], on = "end" }', "on: expected one of success, failure, done"),
        ('{ all = ["a"], withn = "6h" }', 'unknown key "withn"; did you mean "within"?'),
        ('{ all = ["a"], within = "0s" }', "within: expected a duration above zero"),
        ('{ all = ["a"], period = "7h" }', "period: expected a period that divides a day"),
        ('{ all = ["a"], period = "36h" }', "period: expected whole days"),
        ('{ all = ["a"], period = "0.5s" }', "period: expected whole seconds"),
        ('{ all = ["a"], within = "90d" }', "must be shorter than 90d, for which the ledger keeps runs"),
        ('{ all = ["a"], within = "80d", period = "10d" }', "must be shorter than 90d"),
    ],
)
def test_what_cannot_be_is_named_with_file_and_key(tmp_path: Path, said: str, sentence: str) -> None:
    found = load(tmp_path, a=DAILY, j=f"after = {said}\n")

    assert set(found.jobs) == {"a"}
    [problem] = found.problems["j"]
    assert sentence in problem.message
    assert (problem.file, problem.key, problem.severity) == (str(tmp_path / "j.toml"), "after", "error")


def test_a_shorter_retention_refuses_what_a_longer_one_allows(tmp_path: Path) -> None:
    short = Config(node=NodeConfig(name="edge-1"), history=HistoryConfig(keep="1d"))

    assert "must be shorter than 1d" in str(load(tmp_path, short, a=DAILY, j='after = ["a"]\n').problems["j"][0])


def test_a_circle_disables_its_jobs_and_says_the_way_round(tmp_path: Path) -> None:
    found = load(tmp_path, a='after = ["c"]\n', b='after = ["a"]\n', c='after = ["b"]\n', d='after = ["a"]\n')

    assert set(found.jobs) == {"d"}
    assert "the jobs wait for each other: a after c after b after a" in found.problems["a"][0].message
    assert found.problems["a"][0].severity == found.problems["c"][0].severity == "error"


def test_a_circle_through_a_trigger_disables_the_job_of_the_trigger(tmp_path: Path) -> None:
    on = '[[trigger]]\nkind = "event"\non = "run.success"\njobs = ["b"]\n'
    found = load(tmp_path, a=on, b='after = ["a"]\n', c='after = ["b"]\n')

    assert set(found.jobs) == {"b", "c"}
    assert "would start runs for ever: a → b → a" in found.problems["a"][0].message


def test_a_parent_that_is_not_here_is_named_and_disables_nothing(tmp_path: Path) -> None:
    found = load(tmp_path, sales=DAILY, j='after = ["sale"]\n')

    assert set(found.jobs) == {"j", "sales"}
    [problem] = found.problems["j"]
    assert problem.severity == "warning"
    assert 'there is no job "sale" here; did you mean "sales"?' in problem.message


@pytest.mark.parametrize(
    ("said", "own", "sentence"),
    [
        ('["a", "b"]', "", "the schedules of a, b differ: say the period in which their runs belong together"),
        ('["a", "hand"]', "", "hand runs only by hand and a by its schedule"),
        ('["a"]', NIGHTLY, "a and j never fire at the same time: no run of this job would ever start"),
        (
            '{ all = ["a", "late"], period = "1h" }',
            "",
            "a and late never fire at the same time within a period of 3600 s",
        ),
        ('["a", "chained"]', "", "the schedules of a, chained differ"),
    ],
)
def test_cadences_that_never_meet_are_refused(tmp_path: Path, said: str, own: str, sentence: str) -> None:
    jobs = {"a": DAILY, "b": HOURLY, "late": NIGHTLY, "hand": "", "chained": 'after = ["b"]\n'}
    found = load(tmp_path, **jobs, j=f"after = {said}\n{own}")

    assert "j" not in found.jobs
    assert sentence in found.problems["j"][0].message


@pytest.mark.parametrize(
    ("said", "own"),
    [
        ('{ all = ["a", "b"], period = "1d" }', ""),
        ('{ all = ["a"], period = "1d" }', NIGHTLY),
        ('["a"]', 'schedule = "0 2 * * 1"\n'),  # on Mondays, when `a` runs too
        ('["hand"]', ""),
        ('{ any = ["a", "hand"] }', ""),
        ('{ all = ["a", "weekly"], period = "7d" }', ""),
        ('{ all = ["chained", "a"], period = "1d" }', ""),
    ],
)
def test_cadences_that_meet_now_and_then_are_enough(tmp_path: Path, said: str, own: str) -> None:
    jobs = {"a": DAILY, "b": HOURLY, "hand": "", "weekly": 'schedule = "0 5 * * 3"\n', "chained": 'after = ["b"]\n'}

    assert load(tmp_path, **jobs, j=f"after = {said}\n{own}").problems == {}


def test_jobs_from_elsewhere_than_files_are_compared_too() -> None:
    found = read({"a": 'after = ["b"]\n' + COMMAND, "b": 'after = ["a"]\n' + COMMAND}, "revision 3", CONFIG)

    assert found.jobs == {}
    assert str(found.problems["a"][0]) == "revision 3/a.toml: after: the jobs wait for each other: a after b after a"
