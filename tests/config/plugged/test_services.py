"""[[service]] of coordd.toml: what is read, and what is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from plugins.written import written

from coordd.config.plugged.services import SERVICES_MAX, ServiceTable, read_services


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(written(tmp_path / "site", "coordd.services", "", "feed", "other")))


def read(text: str) -> tuple[tuple[ServiceTable, ...], list[str]]:
    problems: list[str] = []
    return read_services(tomllib.loads(text)["service"], problems.append), problems


def test_a_service_has_defaults_and_limits() -> None:
    text = (
        '[[service]]\nname = "feed"\n[[service]]\nname = "other"\nstart_timeout = "2m"\nwatchdog = 60\nmemory = "1G"\n'
    )
    expected = (
        ServiceTable(name="feed"),
        ServiceTable(name="other", start_timeout_s=120.0, watchdog_s=60.0, memory=2**30),
    )
    assert read(text) == (expected, [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("service = 3", "expected [[service]], a list of tables"),
        ("[service]\nname = 'feed'", "expected [[service]], a list of tables"),
        ("[[service]]\nname = 'feed'\n" * (SERVICES_MAX + 1), "expected at most 20 services, found 21"),
        ("[[service]]", "service 1: name: expected it, found nothing"),
        ("[[service]]\nname = 'feet'", 'service 1: name: expected a service, found the text "feet", which no'),
        ("[[service]]\nname = 'feed'\n" * 2, 'service 2: name: there is another service "feed"'),
        ("[[service]]\nname = 'feed'\nwatchdog = '2h'", "service 1: watchdog: expected 1 s to 3600 s, found 7200 s"),
        ("[[service]]\nname = 'feed'\nstart_timeout = 0", "service 1: start_timeout: expected 1 s to 3600 s"),
        ("[[service]]\nname = 'feed'\nmemory = '1M'", "service 1: memory: expected 64M to 64G"),
        ("[[service]]\nname = 'feed'\nargv = ['x']", 'service 1: argv: unknown key "argv"'),
    ],
)  # fmt: skip
def test_a_mistake_is_named(text: str, problem: str) -> None:
    _, problems = read(text)
    assert problems[0].startswith(problem)
