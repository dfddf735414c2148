"""Output appears in one step, and a zombie's output never; open journals are read from a snapshot."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from coordd.errors import ConfigError, RefusedError, UnavailableError
from coordd.history import publishing
from coordd.history.publishing import Owner, Staging, local, write_file


def owner(token: int, attempt: int = 0, job: str = "history") -> Owner:
    return Owner(job=job, run="history@1", attempt=attempt, token=token, node="edge-1.7")


def publish(output: Path, by: Owner, text: str) -> None:
    with Staging(str(output), by) as staging:
        write_file(os.path.join(staging.path, "runs"), text)
        staging.publish()


def test_nothing_is_there_before_it_is_published(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with Staging(str(output), owner(5)) as staging:
        assert "5-0" in staging.path
        write_file(os.path.join(staging.path, "runs"), "half")
        assert not output.exists()
        staging.publish()
        assert (output / "runs").read_text() == "half"
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["out"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_rerun_replaces_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
    if not exchange:
        monkeypatch.setattr(publishing, "exchange", lambda *_: False)
    output = tmp_path / "out"
    publish(output, owner(5), "old")
    (output / "only in the old one").write_text("")
    publish(output, owner(6), "new")
    assert (output / "runs").read_text() == "new"
    assert not (output / "only in the old one").exists()
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["out"]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    output = tmp_path / "out"
    publish(output, owner(5), "old")
    with pytest.raises(OSError, match="disk full"), Staging(str(output), owner(6)):
        raise OSError("disk full")
    assert (output / "runs").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["out"]


def test_a_zombie_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with Staging(str(output), owner(5)) as zombie:
        publish(output, owner(6, attempt=1), "the successor's")
        assert not os.path.exists(zombie.path), "what an older attempt has staged is cleared away"
        os.makedirs(zombie.path)
        with pytest.raises(RefusedError, match="token 6; ours is 5") as refused:
            zombie.publish()
    assert refused.value.kind == "stale"
    assert (output / "runs").read_text() == "the successor's"


def test_tokens_of_another_job_and_runs_by_hand_do_not_compare(tmp_path: Path) -> None:
    output = tmp_path / "out"
    publish(output, owner(6), "1")
    publish(output, owner(5, job="other"), "2")
    publish(output, Owner(), "3")
    publish(output, owner(5), "4")
    assert (output / "runs").read_text() == "4"


def test_an_output_that_changed_since_it_was_read_is_not_replaced(tmp_path: Path) -> None:
    output = tmp_path / "out"
    publish(output, Owner(), "1")
    with Staging(str(output), owner(5)) as staging:
        assert staging.readable(0) == str(output)
        publish(output, Owner(), "2")
        with pytest.raises(RefusedError, match="while this one read it"):
            staging.publish()
    assert (output / "runs").read_text() == "2"


def test_a_directory_with_other_things_in_it_is_never_replaced(tmp_path: Path) -> None:
    output = tmp_path / "home"
    output.mkdir()
    (output / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="holds other files"):
        publish(output, owner(5), "x")
    assert (output / "thesis.tex").read_text() == "years of work"


def test_an_output_that_is_a_file_or_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="not a directory"):
        publish(tmp_path / "file", owner(5), "x")
    with pytest.raises(ConfigError, match="found the scheme hdfs; give a local directory"):
        Staging("hdfs://name/out", owner(5))


@pytest.mark.parametrize("path", ["/data/out", "file:///data/out", "file:/data/out", "file://localhost/data/./out"])
def test_a_local_place_may_be_written_as_a_uri(path: str) -> None:
    assert local("--output", path) == "/data/out"


def test_a_colon_in_a_local_name_is_no_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local("--output", "2026-11-27T03:00") == str(tmp_path / "2026-11-27T03:00")


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("s3a://bucket/out", "the scheme s3a"),
        ("HDFS:/out", "the scheme hdfs"),
        ("file://data/out", "the host 'data'"),
        ("file://", "no path"),
    ],
)
def test_a_place_elsewhere_is_said_to_be_one(path: str, found: str) -> None:
    with pytest.raises(ConfigError) as refused:
        local("--report", path)
    assert str(refused.value).startswith(f"--report {path}: expected a local path or file:///PATH, found {found};")


def test_waiting_for_another_publisher_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "LOCK_TIMEOUT_S", 0.0)
    with open(tmp_path / ".out.staging-lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UnavailableError, match="another process has held"):
            publish(tmp_path / "out", owner(5), "x")
    publish(tmp_path / "out", owner(5), "x")


def test_the_owner_is_read_from_the_environment() -> None:
    environ = {
        "COORDD_RUN": "h@1",
        "COORDD_JOB": "h",
        "COORDD_TOKEN": "17",
        "COORDD_ATTEMPT": "2",
        "COORDD_NODE": "a.1",
    }
    assert Owner.of(environ) == Owner("h", "h@1", 2, 17, "a.1")
    assert Owner.of({}) == Owner()
    with pytest.raises(ConfigError, match="whole numbers"):
        Owner.of({"COORDD_TOKEN": "x"})
