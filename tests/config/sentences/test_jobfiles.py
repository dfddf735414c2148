"""The sentences about job files name the place of a mistake: which key of a table, which item of a list."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordd.config.jobfile import load_job
from coordd.config.sections import Config

RUN = '[command]\nargv = ["/bin/true"]\n'


def problems(tmp_path: Path, text: str) -> list[tuple[str, str, str]]:
    path = tmp_path / "j.toml"
    path.write_text(text)
    return [(problem.severity, problem.key, problem.message) for problem in load_job(str(path), Config())[1]]


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        (f"params = {{ day = 2026-01-01 }}\n{RUN}", "params", 'found a date or time at "day": write it in quotes'),
        (f'{RUN}env = {{ B = "x", A = ["x"] }}\n', "command.env", 'found a list at "A"'),
        (f"{RUN}env = {{ A = {{ b = 1 }} }}\n", "command.env", 'found a table at "A"'),
        (f'tags = ["a", 1]\n{RUN}', "tags", "found the number 1 as item 2"),
        (f'tags = [[], "a"]\n{RUN}', "tags", "found a list as item 1"),
        (
            '[command]\nargv = ["/bin/true", "-n", 5]\n',
            "command.argv",
            "found the number 5 as item 3: write it in quotes",
        ),
        (f"tags = 5\n{RUN}", "tags", "expected a list of texts, found the number 5"),
    ],
)
def test_what_is_no_text_is_named(tmp_path: Path, text: str, key: str, said: str) -> None:
    [(severity, where, message)] = problems(tmp_path, text)
    assert (severity, where) == ("error", key)
    assert said in message


@pytest.mark.parametrize("section", ["command", "retry"])
def test_a_key_of_the_job_below_a_section_is_told_where_it_belongs(tmp_path: Path, section: str) -> None:
    """In TOML a key belongs to the last section above it, whatever lies between."""
    text = RUN.replace("[command]", "[command]\n") if section == "command" else f"{RUN}[retry]\nattempts = 2\n"
    [(_, where, message)] = problems(tmp_path, f'{text}\nschedule = "@daily"\n')
    assert where == f"{section}.schedule"
    assert message.startswith('unknown key "schedule"; known: a')
    assert message.endswith(f"; schedule belongs above [{section}]")
    [(_, _, message)] = problems(tmp_path, f"{text}\nmemory = 5\n")
    assert "belongs" not in message


@pytest.mark.parametrize("launch", [RUN, '[spark]\napplication = "/a.py"\n'])
def test_a_key_of_the_job_among_variables_of_the_program_is_warned_of(tmp_path: Path, launch: str) -> None:
    section = launch[1 : launch.index("]")]
    text = f'{launch}[{section}.env]\nHOUR = "1"\non_lost = "hold"\n'
    [(severity, where, message)] = problems(tmp_path, text)
    assert (severity, where) == ("warning", f"{section}.env.on_lost")
    assert "not the job's on_lost" in message
    assert problems(tmp_path, f'on_lost = "hold"\n{text.replace("on_lost", "ON_LOST")}') == []


@pytest.mark.parametrize(
    ("schedule", "within", "apart"),
    [
        ("0 2 * * *", "1h", "86400 s"),
        ("0 2 * * mon-fri", "26h", "259200 s"),
        ("0 8-18 * * *", "2h", "50400 s"),
        ("every 10m", "9m", "600 s"),
        ("0 2 * * *", "26h", ""),
        ("0 2 * * mon-fri", "74h", ""),
        ("every 10m", "10m", ""),
        ("at 2027-01-01", "1h", ""),
    ],
)
@pytest.mark.parametrize("more", ["", "enabled = false\n", 'jitter = "3m"\n'])
def test_a_job_that_is_late_between_its_fire_times_is_warned_of(
    tmp_path: Path, schedule: str, within: str, apart: str, more: str
) -> None:
    said = problems(tmp_path, f'schedule = "{schedule}"\nexpect_within = "{within}"\n{more}{RUN}')
    if not apart:
        assert said == []
        return
    [(severity, key, message)] = said
    assert (severity, key) == ("warning", "expect_within")
    assert f"up to {apart} apart" in message


def test_a_job_that_is_also_triggered_may_succeed_between_its_fire_times(tmp_path: Path) -> None:
    text = f'schedule = "@daily"\nexpect_within = "1h"\n{RUN}'
    assert [key for _, key, _ in problems(tmp_path, text)] == ["expect_within"]
    assert problems(tmp_path, f'overlap = "allow"\n{text}[[trigger]]\nkind = "file"\npath = "/in/*.csv"\n') == []
