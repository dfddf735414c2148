"""Where job definitions come from: a directory; and those that do not come from one mean the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordd.config import jobfile, tables
from coordd.config.jobfile import JobSet, load_jobs
from coordd.config.sections import Config
from coordd.config.tomlfile import parsed_toml

TEXT = 'schedule = "every 1h"\n[command]\nargv = ["/bin/true"]\n'
TABLE = {"schedule": "every 1h", "command": {"argv": ["/bin/true"]}}


def test_a_definition_has_the_same_digest_wherever_it_comes_from(tmp_path: Path) -> None:
    (tmp_path / "sales.toml").write_text(TEXT)
    found = [
        load_jobs(str(tmp_path), Config()),
        *[tables.read({"sales": said}, "x", Config()) for said in (TEXT, TABLE)],
    ]

    assert len({jobs.jobs["sales"].digest for jobs in found}) == 1


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"sales": "x"}, "revision 3/sales.toml: it is not TOML"),
        ({"sales": "shedule = 5\n" + TEXT}, "revision 3/sales.toml:1: shedule: unknown key"),
        ({"sales": {**TABLE, "schedule": 5}}, "revision 3/sales.toml: schedule: expected"),
        ({"a b": TEXT}, 'as a name, found the text "a b"'),
        ({"x/sales": TEXT}, "as a name, found"),
        ({"sales": 5}, "expected a job's table or its TOML text, found the number 5"),
        ({"sales": TEXT + "#" * 2**20}, "expected at most 1048576 bytes"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(said: dict[str, object], problem: str) -> None:
    found = tables.read(said, "revision 3", Config())  # type: ignore[arg-type]  # what a function may return

    assert found.jobs == {}
    assert problem in tables.first_error(found)


def test_too_many_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "JOBS_MAX", 2)

    found = tables.read({f"j{number}": TABLE for number in range(3)}, "x", Config())

    assert len(found.jobs) == 2
    assert "expected at most 2 jobs, found 3" in tables.first_error(found)
    with pytest.raises(ValueError, match="expected at most 2 job files, found 3"):
        tables.checked_texts({f"j{number}": TEXT for number in range(3)})


@pytest.mark.parametrize("given", [None, [], {"sales": 5}, {5: TEXT}, {"sales": "x" * 2**21}])
def test_texts_of_a_revision_are_checked(given: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        tables.checked_texts(given)


def test_more_errors_than_one_are_counted_and_warnings_are_none() -> None:
    two = tables.read({"a": "x", "b": "y", "c": TABLE}, "x", Config())
    warned = tables.read({"c": {**TABLE, "queue_max": 5}}, "x", Config())

    assert tables.first_error(two).endswith(" (and 1 more)")
    assert (set(two.jobs), tables.first_error(warned), set(warned.problems)) == ({"c"}, "", {"c"})
    assert tables.spoilt(two, JobSet()) == ""
    assert "x/a.toml" in tables.spoilt(two, JobSet(jobs={"a": warned.jobs["c"]}))


def test_a_byte_order_mark_is_named_because_nobody_sees_it() -> None:
    data = b'\xef\xbb\xbf[command]\nargv = ["/bin/true"]\n'
    problem = parsed_toml(data, "j.toml", "job")[2]
    assert str(problem).startswith("j.toml:1: expected UTF-8 without a byte order mark, found one")
    assert parsed_toml(data[3:], "j.toml", "job")[2] is None


# ---- a directory


def test_no_directory_is_a_warning(tmp_path: Path) -> None:
    found = load_jobs(str(tmp_path / "none"), Config())
    assert found.jobs == {}
    assert [problem.severity for problem in found.problems[""]] == ["warning"]


def test_too_many_files_are_not_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobfile, "JOBS_MAX", 2)
    for name in "abc":
        (tmp_path / f"{name}.toml").write_text(TEXT)
    found = load_jobs(str(tmp_path), Config())
    assert set(found.jobs) == {"a", "b"}
    assert "at most 2 job files, found 3" in str(found.problems[""][0])


def test_a_file_whose_name_only_looks_like_a_job_files_is_named(tmp_path: Path) -> None:
    for name in ("a.toml", "B.TOML", ".c.Toml", "d.toml.old"):
        (tmp_path / name).write_text(TEXT)
    found = load_jobs(str(tmp_path), Config())
    assert set(found.jobs) == {"a"}
    (told,) = found.problems[""]
    assert told.severity == "warning"
    assert told.message == "no job file, as its name does not end with .toml: B.TOML"
