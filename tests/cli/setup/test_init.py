"""coordd init: what it writes can be used as it is, is nobody else's to read, and replaces nothing."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coordd.cli.coordd import program
from coordd.cli.setup import first
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


@pytest.mark.parametrize(
    "wrong",
    [
        ("--redis", "redis://edge-1"),
        ("--redis", "a b"),
        ("--redis", "host:99999"),
        ("--redis", "host:0"),
        ("--redis", "[::1]:65536"),
        ("--redis", ""),
        ("--redis", "h", "--name", "A"),
        ("--to", ""),
    ],
)
def test_a_wrong_word_is_refused_before_anything_is_written(
    tmp_path: Path, init: Callable[..., Result], wrong: tuple[str, ...]
) -> None:
    done = init(*wrong)

    assert done.exit_code == 2
    assert "expected" in done.output
    assert not (tmp_path / "etc").exists()


@pytest.mark.parametrize("address", ["host:1", "host:65535", "[::1]:6379", "[::1]"])
def test_an_address_that_is_taken_can_be_used(tmp_path: Path, init: Callable[..., Result], address: str) -> None:
    assert init("--redis", address).exit_code == 0
    config = load(str(tmp_path / "etc/coordd.toml"), {})
    assert config.cluster.ledger == f"redis://{address}{'' if address[-1].isdigit() else ':6379'}/0"


@pytest.mark.parametrize("more", [(), ("--redis", "edge-1")])
def test_the_next_step_uses_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    """The packaged unit reads the usual directory only."""
    usual, other = str(tmp_path / "usual"), str(tmp_path / "an other")
    monkeypatch.setattr(first, "DIRECTORY", usual)

    done = CliRunner().invoke(program, ["init", "--to", usual, *more])
    assert "next: systemctl enable --now coordd" in done.stderr
    done = CliRunner().invoke(program, ["init", "--to", other, *more])
    assert f"next: coordd run --config '{other}/coordd.toml'" in done.stderr
    assert "systemctl" not in done.stderr
