"""The end of a grant whose runner cannot be started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.small_cluster import job

from coordd.config.sections import SparkConfig
from coordd.core.jobs.job import Command
from coordd.core.ledger.words import AttemptNumber, Token
from coordd.core.ready import Launch
from coordd.errors import RefusedError, UnavailableError
from coordd.launching import LaunchBuilder
from coordd.services.runners import RunnerHandle, Runners

LAUNCH = Launch("sales#1", "sales", AttemptNumber(0), Token(7), "nonce", 0.0, "{}", 100.0, 60.0)


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (RefusedError("the arguments do not fit"), "launch_refused"),
        (UnavailableError("no Java"), "launch_failed"),
        (OSError(28, "No space left on device"), "launch_failed"),
        (TypeError("a bug"), "launch_refused, not final"),
        (OverflowError("a value nobody thought of"), "launch_refused, not final"),
        (RecursionError("nested"), "launch_refused, not final"),
    ],
)
def test_a_run_that_fits_nowhere_is_told_from_a_node_that_lacks_something(failure: Exception, told: str) -> None:
    said: list[tuple[Any, ...]] = []

    def node_hears(word: str) -> Any:
        return lambda launch, reason, _now, final=True: said.append(
            (word if final else f"{word}, not final", launch.run, reason)
        )

    def build(_launch: Launch) -> dict[str, Any]:
        raise failure

    words = ("launch_refused", "launch_failed")
    node = SimpleNamespace(definition=lambda *_: None, **{word: node_hears(word) for word in words})
    runners = Runners(SimpleNamespace(start=pytest.fail), build, "")
    runners.driver = SimpleNamespace(node=node, now=lambda: 0.0)  # type: ignore[assignment]  # a stand-in with what is asked of it

    runners.launch(LAUNCH)

    [(word, run, reason)] = said
    assert (word, run) == (told, "sales#1")
    assert str(failure) in reason
    assert runners.runners == {}


@pytest.mark.parametrize(
    ("args", "fire_at"),
    [
        ('{"who": 5}', 0.0),
        ("not json", 0.0),
        ("[]", 0.0),
        ("null", 0.0),
        ('{"who": {"a": 1}}', 0.0),
        ("[" * 30_000, 0.0),
        ('{"who": "a\\u0000b"}', 0.0),
        ('{"who": "\\ud800"}', 0.0),
        ("9" * 5000, 0.0),
        ("{}" + " " * 70_000, 0.0),
        ('{"who": "ann"}', 1e308),
        ('{"who": "ann"}', float("nan")),
        ('{"who": "ann"}', -1.0),
        ('{"who": "ann"}', float("inf")),
    ],
)
def test_what_a_ledger_says_of_a_run_is_not_believed(args: str, fire_at: float, tmp_path: Path) -> None:
    sales = job("sales", params={"who": "x"}, launch=Command(argv=("/bin/echo", "{who}", "{date}")))
    node = SimpleNamespace(jobs={"sales": sales}, full_hostname="a.1", definition=lambda *_: sales)
    config = SimpleNamespace(
        node=SimpleNamespace(state_dir=str(tmp_path), name="a", units="off"),
        spark=SparkConfig(),
        control=SimpleNamespace(socket="/run/coordd/control.sock"),
        cluster=SimpleNamespace(renew_interval=5.0, ledger_timeout=2.0, kill_grace=10.0),
    )
    connections = SimpleNamespace(ledger_url="sqlite:////x", ledger_options=dict)
    builder = LaunchBuilder(config, node, lambda *_: str(tmp_path), connections)  # type: ignore[arg-type]  # a stand-in with what is asked of it
    launch = Launch("sales#1", "sales", AttemptNumber(0), Token(7), "nonce", fire_at, args, 100.0, 60.0)
    with pytest.raises(RefusedError):
        builder.spec(launch)


@pytest.mark.parametrize("reason", ["these cannot be killed: [12]", "whether all have ended cannot be seen from here"])
def test_a_watcher_that_cannot_tell_ends_nothing(reason: str) -> None:
    """Its words must not be published as an end: another node would report the attempt lost while it lives."""
    told: list[str] = []
    node = SimpleNamespace(runner_ended=lambda *_: told.append("ended"), runner_gone=lambda *_: told.append("gone"))
    runners = Runners(SimpleNamespace(), lambda _launch: {}, "")
    runners.driver = SimpleNamespace(node=node, feed=lambda call, *args: call(*args))  # type: ignore[assignment]  # as above
    runner = RunnerHandle("/run/x", LAUNCH, waits=False)
    runners._fact(runner, {"fact": "untold", "at": 1.0, "reason": reason})
    assert told == []
    assert not runner.ended
