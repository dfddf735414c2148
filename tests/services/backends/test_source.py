"""A function as the source of job definitions: whatever it does, what the node has stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from support.samples import kept_file

from coordd.config.jobfile import JobSet
from coordd.config.sections import Config, JobsConfig, NodeConfig
from coordd.errors import ConfigError, JobFileError, UnavailableError
from coordd.ports import Kept
from coordd.services.backends.source import Called, Source

JOB = {"schedule": "every 1h", "command": {"argv": ["/bin/true"]}}
CONFIG = Config(jobs=JobsConfig(backend="python", call="site:jobs", refresh=0.0))

Says = Callable[[], dict[str, Any]]


class Site:
    """A function whose answer a test sets; an exception is raised."""

    def __init__(self, says: object) -> None:
        self.says = says

    def __call__(self, _target: str, _timeout_s: float) -> dict[str, Any]:
        if isinstance(self.says, Exception):
            raise self.says
        assert isinstance(self.says, dict)
        return self.says


def started(says: object, kept: Kept | None = None) -> tuple[Called, Site, list[JobSet], Any]:
    site, file = Site(says), kept_file(kept)
    used: list[JobSet] = []
    source = Called(CONFIG, file, "site:jobs", site)
    source.attach(used.append, None, None)  # type: ignore[arg-type]  # only revisions use the node and the ledger
    source.start()
    return source, site, used, file


def test_the_first_answer_counts_at_the_start() -> None:
    source, _, _, _ = started({"sales": JOB, "bad": {"schedule": 5}})

    assert set(source.jobs.jobs) == {"sales"}
    assert "site:jobs/bad.toml" in str(source.jobs.problems["bad"][0])
    assert source.problem == ""


def test_a_copy_is_used_while_the_function_fails_at_the_start() -> None:
    source, _, _, _ = started(UnavailableError("site:jobs: it failed: x"), Kept("site:jobs", {"sales": JOB}))

    assert set(source.jobs.jobs) == {"sales"}
    assert source.problem == "site:jobs: it failed: x; the 1 jobs from before stay"


def test_why_tells_where_the_jobs_come_from() -> None:
    source, site, _, _ = started({"sales": JOB})
    assert source.told("sales") == ""
    assert source.told("stock") == "The jobs of this node come from python: site:jobs."
    site.says = UnavailableError("site:jobs: no answer")
    trio.run(source.look)
    told = "The jobs of this node come from python: site:jobs; site:jobs: no answer; the 1 jobs from before stay."
    assert [source.told(job) for job in ("sales", "stock")] == [told, told]
    assert Source(CONFIG).told("stock") == "", "files"


def test_a_copy_of_another_source_is_not_used() -> None:
    source, _, _, _ = started(UnavailableError("site:jobs: it failed: x"), Kept("other:jobs", {"sales": JOB}))

    assert source.jobs.jobs == {}
    assert source.problem == "site:jobs: it failed: x; this node has no jobs"
    assert source.checks()[0]["state"] == "fail"


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        (UnavailableError("site:jobs: no answer"), "site:jobs: no answer; the 1 jobs from before stay"),
        ({}, "site:jobs: expected jobs, found none; the 1 jobs from before stay"),
        ({"sales": {"schedule": "whenever"}}, "site:jobs/sales.toml"),
    ],
)
def test_what_is_there_stays_when_the_function_spoils_it(says: object, problem: str) -> None:
    source, site, used, file = started({"sales": JOB})
    site.says = says

    trio.run(source.look)

    assert used == []
    assert set(source.jobs.jobs) == {"sales"}
    assert problem in source.problem
    assert file.saved == []
    site.says = {"sales": JOB}
    trio.run(source.look)
    assert source.problem == ""


def test_a_new_answer_is_used_and_kept() -> None:
    source, site, used, file = started({"sales": JOB})
    site.says = {"sales": JOB, "stock": JOB}

    trio.run(source.look)
    trio.run(source.look)

    assert [set(jobs.jobs) for jobs in used] == [{"sales", "stock"}]
    assert [set(kept.jobs) for kept in file.saved] == [{"sales", "stock"}]


def test_a_reload_reads_the_same_tables_by_the_new_configuration() -> None:
    """Only a pool makes the job valid."""
    pools = Config(jobs=CONFIG.jobs, pools={"heavy": 1})
    source, _, _, _ = started({"sales": JOB})
    source.kept = Kept("site:jobs", {"sales": {**JOB, "pool": "heavy"}})

    with pytest.raises(ConfigError, match="there is no pool"):
        source.reload(CONFIG)
    assert set(source.reload(pools).jobs) == {"sales"}


def test_files_that_are_gone_or_spoilt_keep_what_was_there(tmp_path: Any) -> None:
    (tmp_path / "sales.toml").write_text('[command]\nargv = ["/bin/true"]\n')
    config = Config(node=NodeConfig(jobs_dir=str(tmp_path)))
    source = Source(config)
    assert set(source.start().jobs) == {"sales"}
    (tmp_path / "sales.toml").write_text("x")

    with pytest.raises(JobFileError, match="nothing was changed"):
        source.reload(config)
    absent = Config(node=NodeConfig(jobs_dir=str(tmp_path / "none")))
    for no_jobs in (False, True):
        with pytest.raises(ConfigError) as refused:
            source.reload(absent, no_jobs=no_jobs)
        assert str(refused.value) == (
            f"{tmp_path}/none: there is no such directory, and 1 jobs were loaded from it; mount or create it; "
            "nothing was changed"
        )


def test_a_directory_without_a_job_file_is_refused_until_a_person_says_that_all_jobs_go(tmp_path: Any) -> None:
    (tmp_path / "sales.toml").write_text('[command]\nargv = ["/bin/true"]\n')
    config = Config(node=NodeConfig(jobs_dir=str(tmp_path)))
    source = Source(config)
    source.start()
    (tmp_path / "sales.toml").unlink()

    with pytest.raises(ConfigError, match=r"has no job file, and 1 jobs .* coordctl reload --no-jobs; nothing was"):
        source.reload(config)
    assert source.reload(config, no_jobs=True).jobs == {}
    source.taken(config, source.reload(config, no_jobs=True))
    assert source.reload(config).jobs == {}, "there were none"
