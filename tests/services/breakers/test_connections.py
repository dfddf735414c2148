"""The breakers of connections: what a person may say of them, and how loudly they are told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordd.config.settings import read_config
from coordd.core.breaker import FAILURES, SLOW, TIMEOUT, Breaker, Loud, Rule
from coordd.core.ledger.words import FAILURE
from coordd.services import ledger as module
from coordd.services.breakers.own import OwnBreakers
from coordd.services.ledger import LedgerService


def rules(tmp_path: Path, text: str) -> tuple[dict[str, Rule], list[str]]:
    path = tmp_path / "coordd.toml"
    path.write_text(f'[node]\nname = "n1"\n[breakers]\n{text}\n')
    config, problems = read_config(str(path), {})
    return (config.breakers if config else {}), [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("growth", "pauses"),
    [("fixed", [1.0, 1.0, 1.0, 1.0]), ("linear", [1.0, 2.0, 3.0, 4.0]), ("exponential", [1.0, 2.0, 4.0, 4.5])],
)
def test_a_rule_of_a_connection_says_how_long_it_stays_open(growth: str, pauses: list[float], tmp_path: Path) -> None:
    said = f'ledger = {{ after = 2, open_for = "1s", open_for_max = 4.5, growth = "{growth}" }}'
    found, problems = rules(tmp_path, said)
    assert problems == []
    breaker = Breaker("ledger")
    breaker.use(found["ledger"])
    now = 100.0
    breaker.failed(breaker.allow(now), "away", now, 1.0)
    assert not breaker.is_open
    seen = []
    for _ in pauses:
        breaker.failed(breaker.allow(now), "away", now, 1.0)
        seen.append(breaker.retry_in_s(now))
        now += seen[-1]
    assert seen == pauses
    breaker.succeeded(breaker.allow(now), now)
    breaker.use(Rule(((1, FAILURES),), open_for_s=0.25))
    breaker.failed(breaker.allow(now), "away", now, 1.0)
    assert breaker.retry_in_s(now) == 0.25


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ledgre = {}", 'there is no connection "ledgre"; did you mean "ledger"'),
        ("bus = 3", "bus: expected a table, found the number 3"),
        ("bus = { after = 0 }", "bus: after: expected a whole number from 1"),
        ("bus = { after = { open = 2 } }", 'bus: after: expected closed or half_open, found the text "open"'),
        ('bus = { on = ["timeout"] }', 'bus: on: expected failure, found the text "timeout"'),
        ('ledger = { on = ["lost"] }', "ledger: on: expected failure, timeout, slow, found"),
        ("ledger = { on = [] }", "ledger: on: expected a list of failures, or a table of numbers by failure"),
        ("ledger = { on = { slow = 0 } }", "ledger: on: expected a whole number from 1"),
        ("ledger = { after = 2, on = { slow = 9 } }", "after: has no effect beside a table under on"),
        ('ledger = { window = "2d" }', "ledger: window: expected 1 s to 86400 s"),
        ('bus = { window = "0s" }', "bus: window: expected"),
        ('bus = { open_for = "1h" }', "bus: open_for: expected 0.05 s to 300 s"),
        ('bus = { open_for = "9s", open_for_max = "8s" }', "open_for_max: expected a duration of at least open_for"),
        ('bus = { growth = "quadratic" }', "bus: growth: expected one of fixed, linear, exponential"),
        ("bus = { loud = 3 }", "bus: loud: expected a table such as"),
        ("bus = { loud = { after = 0 } }", "bus: loud: after: expected a whole number from 1"),
        ('bus = { loud = { within = "8d" } }', "bus: loud: within: expected 1 s to 604800 s"),
        ("bus = { loud = { form = 1 } }", 'bus: loud: form: unknown key "form"; did you mean "for"'),
        ("bus = { openfor = 3 }", 'unknown key "openfor"; did you mean "open_for"'),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, problem: str) -> None:
    found, problems = rules(tmp_path, text)
    assert found == {}
    assert len(problems) == 1
    assert problem in problems[0]


def test_a_rule_says_what_counts_within_which_window_and_in_which_state(tmp_path: Path) -> None:
    said = 'ledger = { on = { timeout = 2, slow = 10 }, window = "10s", after = { half_open = 2 } }'
    expected = Rule(((2, (TIMEOUT,)), (10, (SLOW,))), window_s=10.0, probes=2)
    assert rules(tmp_path, said) == ({"ledger": expected}, [])
    said = 'bus = { after = { closed = 5 }, on = ["failure"], window = "10m" }'
    assert rules(tmp_path, said) == ({"bus": Rule(((5, (FAILURE,)),), window_s=600.0)}, [])
    assert rules(tmp_path, "ledger = {}") == ({"ledger": Rule()}, []), "an empty table changes nothing"


def test_a_bus_that_comes_and_goes_is_told_within_a_window() -> None:
    bus: Any = SimpleNamespace(state="connected", error="")
    own = OwnBreakers(Breaker("ledger"))
    own.bus.use(Rule(((3, FAILURES),), window_s=60.0))
    with capture_logs() as logs:
        for now in (10.0, 20.0, 30.0):
            bus.state = "disconnected"
            own.look_at(bus, now)
            bus.state = "connected"
            own.look_at(bus, now + 5.0)
    assert [(line["event"], line["name"], line["log_level"]) for line in logs] == [("breaker.opened", "bus", "warning")]
    assert (own.bus.opened, own.bus.is_open) == (1, False)


def test_a_question_that_takes_long_is_slow_and_without_an_answer_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "boottime", lambda: 1000.0)
    service = LedgerService(lambda: None, 2.0)  # type: ignore[arg-type,return-value]  # nobody asks it
    breaker = service.breaker

    def judged(failure: str, took_s: float) -> int:
        service._judge(breaker.allow(1000.0), failure, took_s)
        return breaker.failures

    assert [judged("", 1.9), judged("away", 0.1), judged("", 1.9)] == [0, 1, 0], "slow answers count only if named"
    breaker.use(Rule(((2, (TIMEOUT, SLOW)),), window_s=60.0))
    assert [judged("", 1.5), judged("away", 0.1), judged("", 1.7)] == [0, 0, 1]
    assert service.state == "connected", "it did answer"
    assert (judged("no answer in time", 1.7), breaker.is_open) == (2, True)


def test_a_longer_pause_alone_is_enough(tmp_path: Path) -> None:
    assert rules(tmp_path, 'bus = { open_for = "9s" }') == ({"bus": Rule(open_for_s=9.0, open_for_max_s=9.0)}, [])


def test_trips_of_the_ledger_get_louder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(module, "boottime", lambda: clock.now)
    service = LedgerService(lambda: None, 2.0)  # type: ignore[arg-type,return-value]  # nobody asks it

    def trip() -> str:
        with capture_logs() as logs:
            for _ in range(3):
                service._judge(service.breaker.allow(clock.now), "away")
            clock.now += 10.0
            service._judge(service.breaker.allow(clock.now), "")
        words: list[Any] = [line["log_level"] for line in logs if line["event"] == "breaker.opened"]
        assert [line["event"] for line in logs if line["event"] == "breaker.closed"] == ["breaker.closed"]
        [level] = words
        return str(level)

    usual = Loud()
    assert [trip() for _ in range(usual.after + 1)] == [*["warning"] * (usual.after - 1), "error", "error"]
    clock.now += usual.for_s + usual.within_s
    assert trip() == "warning"
    found, problems = rules(tmp_path, 'ledger = { loud = { after = 2, for = "1m" } }')
    assert (problems, found["ledger"].loud) == ([], Loud(after=2, for_s=60.0))
    service.breaker.use(found["ledger"])
    assert trip() == "error", "it is the second one within five minutes"
