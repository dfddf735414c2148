"""What check-config says of params and of what names them, and of keys that have no effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.written import write
from coordd.config.jobfile import load_job
from coordd.config.settings import load

TRIGGER = '[[trigger]]\nkind = "command"\nargv = ["/bin/true"]\nargs = { ev = "{trigger.key}" }\n'


def told(tmp_path: Path, text: str) -> list[str]:
    path = write(tmp_path / "etl.toml", text)
    _, problems = load_job(path, load(None, {}))
    return [f"{problem.key}: {problem.message}" for problem in problems]


@pytest.mark.parametrize("wrong", ['{ date = "x", ev = "" }', "5", '{ "a b" = "" }'])
def test_nothing_follows_from_params_that_cannot_be_used(tmp_path: Path, wrong: str) -> None:
    """Each name that a template has was said to be not declared."""
    limits = 'concurrency = { max = 2, per = "{ev}" }\noverlap = "allow"\ndedupe = "{ev}"\n'
    command = '[command]\nargv = ["/bin/echo", "{ev}"]\n'
    (only,) = told(tmp_path, f"params = {wrong}\n{limits}{command}{TRIGGER}")
    assert only.startswith("params: ")


def test_nothing_follows_from_an_expand_that_cannot_be_used(tmp_path: Path) -> None:
    (only,) = told(tmp_path, 'expand = { day = [] }\n[command]\nargv = ["/bin/echo", "{day}"]\n')
    assert only.startswith("expand: ")


def test_a_key_without_schedule_says_how_the_job_runs(tmp_path: Path) -> None:
    command = '[command]\nargv = ["/bin/true"]\n'
    jitter = 'jitter = "1m"\n'
    assert told(tmp_path, jitter + command) == [
        "jitter: jitter has no effect without schedule: the job runs by hand only"
    ]
    (after,) = told(tmp_path, jitter + 'after = ["other"]\n' + command)
    assert "the job runs after its parents" in after
    (triggered,) = told(tmp_path, jitter + 'params = { ev = "" }\n' + command + TRIGGER)
    assert "when a trigger of its file starts it, or by hand" in triggered


def test_a_list_beside_tables_of_the_same_name_is_explained(tmp_path: Path) -> None:
    (only,) = told(tmp_path, 'check = ["room"]\n[[check]]\nname = "w"\n')
    assert "a file has either NAME = [...] or [[NAME]], not both" in only


COMMAND = '[command]\nargv = ["/bin/true"]\n'


@pytest.mark.parametrize("key", ['delay = "1m"', 'backoff = "linear"', "jitter = 0.5", "never_on = [2]"])
def test_a_key_of_retries_that_there_are_not_has_no_effect(tmp_path: Path, key: str) -> None:
    name = key.partition(" ")[0]
    for attempts in ("", "attempts = 1\n"):
        assert told(tmp_path, f"{COMMAND}[retry]\n{attempts}{key}\n") == [
            f"retry.{name}: {name} has no effect without attempts above 1: no failure is tried again"
        ]
    assert told(tmp_path, f"{COMMAND}[retry]\nattempts = 2\n{key}\n") == []
    assert told(tmp_path, f"{COMMAND}[retry]\nrelaunches = 2\nsubmits = 2\n") == []
    (only,) = told(tmp_path, f"{COMMAND}[retry]\nattempts = 0\n{key}\n")
    assert only.startswith("retry.attempts: ")


def test_the_longest_time_of_a_breaker_that_does_not_grow_has_no_effect(tmp_path: Path) -> None:
    longest = 'open_for_max = "2h"\n'
    for growth in ("", 'growth = "fixed"\n'):
        (only,) = told(tmp_path, f"{COMMAND}[breaker]\n{growth}{longest}")
        assert only.startswith('breaker.open_for_max: open_for_max has no effect with growth = "fixed", the default')
    assert told(tmp_path, f'{COMMAND}[breaker]\ngrowth = "linear"\n{longest}') == []


@pytest.mark.parametrize(
    ("schedule", "within", "apart_s"),
    [
        ("@daily", "", 86_400),
        ("0 9,10 * * *", "", 3600),
        ("0 9,10 * * *", "1h", 3600),
        ("0 9,10 * * *", "61m", 0),
        ("every 2h", "", 7200),
        ("every 30m", "", 0),
        ("@daily", "3d", 0),
        ("at 2030-01-01T00:00Z", "", 0),  # there is one anyway
    ],
)
def test_all_that_comes_too_late_to_start_is_not_caught_up(
    tmp_path: Path, schedule: str, within: str, apart_s: int
) -> None:
    keys = f'schedule = "{schedule}"\nmisfire = "all"\noverlap = "queue"\n'
    keys += f'start_within = "{within}"\n' if within else ""
    said = told(tmp_path, keys + COMMAND)
    if apart_s:
        (only,) = said
        assert only.startswith('misfire: misfire = "all" catches up one fire time at the most: they are ')
        assert f"are {apart_s} s apart, and start_within gives up those that are more than 3600 s late" in only
    else:
        assert said == []


def test_of_two_warnings_about_misfire_the_first_one_is_told(tmp_path: Path) -> None:
    daily = f'schedule = "@daily"\nmisfire = "all"\n{COMMAND}'
    (only,) = told(tmp_path, daily)
    assert "start_within gives up" in only
    (only,) = told(tmp_path, 'start_within = "3d"\n' + daily)
    assert "of several missed fire times one runs and the others are rejected" in only


@pytest.mark.parametrize("overlap", ["", "forbid", "queue", "replace", "allow"])
def test_a_concurrency_of_each_customer_needs_runs_beside_each_other(tmp_path: Path, overlap: str) -> None:
    keys = f'overlap = "{overlap}"\n' if overlap else ""
    keys += 'params = { customer = "" }\nconcurrency = { per = "{customer}", max = 1 }\n'
    said = told(tmp_path, keys + COMMAND)
    if overlap == "allow":
        assert said == []
    else:
        (only,) = said
        assert only.startswith('concurrency: per has no effect without overlap = "allow": one run of the job is in')
    assert told(tmp_path, keys.replace("max = 1", "max = 0") + COMMAND) == []  # it suspends


def test_missed_fire_times_that_replace_each_other_are_told(tmp_path: Path) -> None:
    keys = 'schedule = "@daily"\nmisfire = "all"\nstart_within = "3d"\n'
    (only,) = told(tmp_path, f'{keys}overlap = "replace"\n{COMMAND}')
    assert only.startswith('misfire: misfire = "all" with overlap = "replace": ')
    assert "the newest revokes the others" in only
    for overlap in ("queue", "allow"):
        assert told(tmp_path, f'{keys}overlap = "{overlap}"\n{COMMAND}') == []


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("*/90 * * * *", '"*/90" is longer than the 60 minutes of an hour: it begins again in each one'),
        ("5-55/61 * * * *", '"5-55/61" is longer than'),
        ("0 1,*/48 * * *", '"*/48" is longer than the 24 hours of a day'),
        ("0 0 */45 * *", '"*/45" is longer than the 31 days of a month'),
        ("0 0 1 */18 *", '"*/18" is longer than the 12 months of a year'),
        ("0 0 * * */14", '"*/14" is longer than the 7 days of a week'),
        ("*/59 */23 */30 */11 */6", ""),
        ("@daily", ""),
        ("every 90m", ""),
    ],
)
def test_a_step_of_a_cron_line_that_is_too_long_is_told(tmp_path: Path, schedule: str, said: str) -> None:
    found = [one for one in told(tmp_path, f'schedule = "{schedule}"\n{COMMAND}') if "longer than the" in one]
    assert len(found) == bool(said)
    assert all(one.startswith(f"schedule: {said}") for one in found)
