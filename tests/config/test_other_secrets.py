"""Passwords and tokens of lineage, mirror and published revisions: the rules are those of bus and ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.written import refused, write
from coordd.config import safety
from coordd.config.settings import load

INSECURE = "[cluster]\nallow_insecure = true\n"


def lineage(tmp_path: Path, url: str, *, token: bool = True) -> str:
    path = tmp_path / "lineage.token"
    path.write_text("secret\n")
    path.chmod(0o600)
    return f'[lineage]\nurl = "{url}"\n' + (f'token_file = "{path}"\n' if token else "")


def told(path: str) -> list[tuple[str, str]]:
    return [(problem.key, problem.message) for problem in safety.warnings(load(path, {}))]


@pytest.mark.parametrize("url", ["http://lineage.example:5000/api/v1/lineage", "HTTP://10.0.0.7/x"])
def test_a_token_does_not_cross_the_network_in_clear(tmp_path: Path, url: str) -> None:
    path = tmp_path / "coordd.toml"
    said = refused(write(path, lineage(tmp_path, url)))
    assert "lineage.url" in said
    assert "is not encrypted" in said
    assert "use https://" in said
    assert "allow_insecure = true" in said

    [(key, warning)] = told(write(path, INSECURE + lineage(tmp_path, url)))
    assert key == "lineage.url"
    assert "is not encrypted" in warning


@pytest.mark.parametrize(
    ("url", "token"),
    [
        ("https://lineage.example/api/v1/lineage", True),
        ("http://127.0.0.1:5000/api/v1/lineage", True),
        ("http://localhost/x", True),
        ("http://[::1]/x", True),
        ("http://lineage.example/x", False),
    ],
)
def test_other_addresses_of_lineage_are_taken(tmp_path: Path, url: str, *, token: bool) -> None:
    assert told(write(tmp_path / "coordd.toml", lineage(tmp_path, url, token=token))) == []


@pytest.mark.parametrize(
    ("section", "url"),
    [
        ("mirror", "amqps://coordd:hunter2@mq.example/"),
        ("jobs", "rediss://coordd:hunter2@redis.example/0"),
        ("jobs", "rediss+sentinel://:hunter2@s1.example:26379/master/0"),
    ],
)
def test_a_password_in_an_address_draws_a_warning(tmp_path: Path, section: str, url: str) -> None:
    [(key, warning)] = told(write(tmp_path / "coordd.toml", f'[{section}]\nurl = "{url}"\n'))
    assert key == f"{section}.url"
    assert "the URL contains the password" in warning
    assert f"{section}.password_file, or a systemd credential {section}_password" in warning
    assert "hunter2" not in warning
    without = url.replace(":hunter2@", "@").replace("://@", "://")
    assert told(write(tmp_path / "coordd.toml", f'[{section}]\nurl = "{without}"\n')) == []


@pytest.mark.parametrize(("section", "url"), [("mirror", "amqp://mq.example/"), ("jobs", "redis://redis.example/0")])
def test_an_address_that_was_allowed_draws_a_warning(tmp_path: Path, section: str, url: str) -> None:
    [(key, warning)] = told(write(tmp_path / "coordd.toml", f'{INSECURE}[{section}]\nurl = "{url}"\n'))
    assert key == f"{section}.url"
    assert "is not encrypted" in warning


def test_each_of_several_addresses_counts(tmp_path: Path) -> None:
    bus = 'bus = ["amqps://far.example/?no_verify_ssl=1", "amqps://u:hunter2@mq.example/"]'
    text = f'{INSECURE}{bus}\nledger = "redis://127.0.0.1/0"\nunsigned = true\n'
    said = [warning for key, warning in told(write(tmp_path / "coordd.toml", text)) if key == "cluster.bus"]
    assert len(said) == 2
    assert "contains the password" in said[0]
    assert "no_verify_ssl in the URL believes any" in said[1]
