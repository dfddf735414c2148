"""coordd init: what it writes can be used as it is, is nobody else's to read, and replaces nothing."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coordd.cli.coordd import program
from coordd.config.jobfile import load_job
from coordd.config.settings import load


@pytest.fixture
def init(tmp_path: Path) -> Callable[..., Result]:
    def run(*args: str) -> Result:
        return CliRunner().invoke(program, ["init", "--to", str(tmp_path / "etc"), *args], prog_name="coordd")

    return run


def test_one_machine_needs_no_settings(tmp_path: Path, init: Callable[..., Result]) -> None:
    done = init()

    assert done.exit_code == 0
    assert done.stdout == ""
    assert sorted(path.name for path in (tmp_path / "etc").iterdir()) == ["coordd.toml", "jobs.d"]
    config = load(str(tmp_path / "etc/coordd.toml"), {})
    assert config.cluster.ledger.startswith("sqlite:")
    assert load_job(str(tmp_path / "etc/jobs.d/hello.toml"), config)[1] == []


def test_a_cluster_gets_keys_a_password_and_the_commands_for_redis(tmp_path: Path, init: Callable[..., Result]) -> None:
    done = init("--redis", "edge-1", "--name", "night")

    etc = tmp_path / "etc"
    password = (etc / "redis.password").read_text().strip()
    assert done.exit_code == 0
    assert f"config set requirepass {password}\n" in done.stdout
    assert done.stdout.splitlines()[-1] == "config rewrite"
    config = load(str(etc / "coordd.toml"), {})
    assert (config.cluster.name, config.cluster.ledger) == ("night", "redis://edge-1:6379/0")
    assert config.cluster.is_signed
    assert password not in done.stderr
    for name in ("redis.password", "keys.toml"):
        assert stat.S_IMODE((etc / name).stat().st_mode) & 0o007 == 0


def test_two_clusters_share_no_secret(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert CliRunner().invoke(program, ["init", "--to", str(tmp_path / name), "--redis", "h"]).exit_code == 0
    for name in ("redis.password", "keys.toml"):
        assert (tmp_path / "a" / name).read_text() != (tmp_path / "b" / name).read_text()


@pytest.mark.parametrize("there", ["coordd.toml", "keys.toml", "jobs.d/hello.toml"])
def test_nothing_is_overwritten_and_nothing_half_written(
    tmp_path: Path, init: Callable[..., Result], there: str
) -> None:
    path = tmp_path / "etc" / there
    path.parent.mkdir(parents=True)
    path.write_text("mine")

    done = init("--redis", "edge-1:6380")

    assert done.exit_code == 1
    assert f"{path} exists already; nothing was written" in done.stderr
    assert done.stdout == ""
    assert path.read_text() == "mine"
    assert [found for found in (tmp_path / "etc").rglob("*") if found.is_file()] == [path]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path, init: Callable[..., Result]) -> None:
    (tmp_path / "etc").write_text("a file")

    done = init()

    assert done.exit_code == 1
    assert f"{tmp_path}/etc" in done.stderr
    assert "cannot be written" in done.stderr


@pytest.mark.parametrize("wrong", [("--redis", "redis://edge-1"), ("--redis", "a b"), ("--redis", "h", "--name", "A")])
def test_a_wrong_word_is_refused_before_anything_is_written(
    tmp_path: Path, init: Callable[..., Result], wrong: tuple[str, ...]
) -> None:
    done = init(*wrong)

    assert done.exit_code == 2
    assert "expected" in done.output
    assert not (tmp_path / "etc").exists()
