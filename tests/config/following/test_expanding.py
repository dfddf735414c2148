"""`expand` and `chunk` of job files: what they may say, and what goes with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.following.test_after import load
from coordd.core.groups.expand import Expand
from coordd.core.jobs.job import Command


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('expand = { region = ["eu", "us"] }', Expand("region", ("eu", "us"))),
        ("expand = { n = [1, 2] }", Expand("n", ("1", "2"))),
        ('chunk = 2\nexpand = { region = ["eu", "us", "asia"] }', Expand("region", ("eu", "us", "asia"), chunk=2)),
        ('expand = { day = { from = "{date}", days = 7 } }', Expand("day", begin="{date}", days=7)),
        ("expand = { day = { days = 7 } }", Expand("day", begin="{date}", days=7)),
        ("expand = { day = { from = 2026-01-31, days = 2 } }", Expand("day", begin="2026-01-31", days=2)),
        ('expand = { day = { from = "2026-01-31", days = 2 } }', Expand("day", begin="2026-01-31", days=2)),
    ],
)
def test_one_parameter_has_values_or_days(tmp_path: Path, said: str, expected: Expand) -> None:
    found = load(tmp_path, j=said + "\n")

    assert found.problems == {}
    assert found.jobs["j"].expand == expected
    assert found.jobs["j"].overlap == "allow"
    assert expected.key in found.jobs["j"].params


def test_the_parameter_is_declared_by_being_there(tmp_path: Path) -> None:
    said = 'params = { day = "1" }\nexpand = { region = ["eu"] }\n'
    (tmp_path / "j.toml").write_text(said + '[command]\nargv = ["/bin/echo", "{region}", "{day}"]\n')
    found = load(tmp_path)

    assert found.problems == {}
    launch = found.jobs["j"].launch
    assert isinstance(launch, Command)
    assert launch.argv[1] == "{region}"


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("expand = 3", "expected one parameter with its values"),
        ("expand = {}", "found 0 parameters"),
        ('expand = { a = ["1"], b = ["2"] }', "found 2 parameters"),
        ("expand = { a = [] }", "a: expected a list of values, or a table with from and days; found an empty list"),
        ('expand = { a = "eu" }', 'a: expected a list of values, or a table with from and days; found the text "eu"'),
        ("expand = { a = [true] }", "expected texts or whole numbers for a"),
        ('expand = { a = ["x", "x"] }', 'a: expected each value once, found "x" twice'),
        (r'expand = { a = ["x\ny"] }', "a:"),
        ('expand = { "a b" = ["x"] }', "expected a name of letters, digits and _"),
        ('expand = { date = ["x"] }', '"date" is a name that coordd sets itself'),
        ("expand = { day = { from = 3, days = 2 } }", 'day.from: expected "{date}"'),
        ('expand = { day = { from = "9999-12-31", days = 2 } }', "day.from: expected"),
        ('expand = { day = { from = "{date}" } }', "a whole number for day.days"),
        ("expand = { day = { days = 0 } }", "day.days: expected a whole number from 1"),
        ("expand = { day = { day = 3, days = 1 } }", 'day: unknown key "day"; did you mean "days"?'),
        ("expand = { day = { days = 1001 } }", "expected at most 1000 runs, found 1001; chunk = 2"),
        ("chunk = 2", "there is no expand"),
        ('chunk = 0\nexpand = { a = ["x"] }', "expected a whole number from 1"),
        ('overlap = "queue"\nexpand = { a = ["x"] }', 'expected "allow", found "queue"'),
        ('dedupe = "{a}"\nexpand = { a = ["x"] }', "dedupe beside expand"),
        ('params = { a = "x" }\nexpand = { a = ["x"] }', '"a" is in params too'),
        ("chunk = 1000\nexpand = { day = { days = 1000 } }", "chunk 0 is 14000 bytes long, at most 4096"),
        ('expand = { a = ["x"] }\n[[trigger]]\nkind = "command"\nargv = ["/bin/true"]', "expand beside [[trigger]]"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, said: str, sentence: str) -> None:
    found = load(tmp_path, j=said + "\n")

    assert any(sentence in problem.message for problem in found.problems["j"]), found.problems["j"]
    assert "j" not in found.jobs
