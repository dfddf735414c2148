"""Whole definitions that outlive the daemon: what was written is read again, and a damaged file stops nobody."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support.small_cluster import job

from coordd.adapters.disk.job_definitions import JobDefinitionsFile
from coordd.config.jobfile import load_jobs
from coordd.config.sections import Config, NodeConfig
from coordd.errors import UnavailableError

JOBS = {
    "plain": """
        schedule = "5 2 * * 1"
        jitter = "9m"
        [command]
        argv = ["/bin/true", "{fire_time}"]
        env = { A = "b" }
    """,
    "sales": """
        [spark]
        application = "/srv/a.py"
        conf = { "spark.x" = "1" }
        [retry]
        attempts = 3
        delay = "5m"
    """,
}


def test_every_kind_of_job_comes_back_as_it_was(tmp_path: Path) -> None:
    for name, text in JOBS.items():
        (tmp_path / f"{name}.toml").write_text(text)
    jobs = list(load_jobs(str(tmp_path), Config(node=NodeConfig(name="edge-1"))).jobs.values())
    file = JobDefinitionsFile(f"{tmp_path}/job-definitions.bin")
    assert file.load() == ([], "")

    file.save(jobs)

    assert len(jobs) == len(JOBS)
    assert file.load() == (jobs, "")
    assert (tmp_path / "job-definitions.bin").stat().st_mode & 0o777 == 0o600


def test_fields_of_another_version_are_left_out_and_missing_ones_have_their_default(tmp_path: Path) -> None:
    path = tmp_path / "job-definitions.bin"
    told = {"kind": "command", "name": "sales", "digest": "d1", "launch": {"argv": ["/bin/true"]}, "new": 1}
    path.write_bytes(msgspec.msgpack.encode([told]))

    ((found,), said) = JobDefinitionsFile(str(path)).load()

    assert (found.name, found.digest, found.overlap, said) == ("sales", "d1", "forbid", "")


NO_DEFINITIONS = msgspec.msgpack.encode([{"kind": "pig", "launch": {}}])


@pytest.mark.parametrize("content", [b"", b"\x80", b"\x91\x01", b"\x91\x80", NO_DEFINITIONS, b"\xff", b"\x91" * 60_000])
def test_a_damaged_file_is_put_aside_and_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "job-definitions.bin"
    path.write_bytes(content)

    found, said = JobDefinitionsFile(str(path)).load()

    assert found == []
    assert str(path) in said
    assert (tmp_path / "job-definitions.bin.bad-1").read_bytes() == content


def test_a_disk_that_takes_nothing_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot write"):
        JobDefinitionsFile(f"{tmp_path}/none/job-definitions.bin").save([job()])
