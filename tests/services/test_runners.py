"""The end of a grant whose runner cannot be started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from support.small_cluster import job

from coordd.config.sections import SparkConfig
from coordd.core.jobs.job import Command
from coordd.core.ledger.words import AttemptNumber, Token
from coordd.core.ready import Launch
from coordd.core.wire.events import TaskStarted
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
        guard=SimpleNamespace(told=lambda _: ""),
        cluster=SimpleNamespace(name="c", tls_ca="", renew_interval=5.0, ledger_timeout=2.0, kill_grace=10.0),
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


class Shutdown:
    """Runners that end some time after they are told to."""

    def __init__(self, **ends_after_s: float) -> None:
        self.ends_after_s = ends_after_s
        self.told: dict[str, float] = {}
        self.reaped: set[str] = set()
        self.unread: set[str] = set()
        self.waits: list[tuple[str, float]] = []

    def command(self, directory: str, word: str, reason: str) -> None:
        assert (word, reason) == ("shutdown", "the machine stops")
        self.told[directory] = trio.current_time()

    def reap(self) -> None:
        """A child that has exited is there until it is reaped."""
        now = trio.current_time()
        self.reaped |= {one for one, at in self.told.items() if now >= at + self.ends_after_s[one]}

    def alive(self, directory: str) -> bool:
        return directory not in self.reaped

    def spec(self, directory: str) -> dict[str, Any]:
        if directory in self.unread:
            raise UnavailableError("it cannot be read")
        return {"kill_grace_s": {"long": 20.0, "odd": 1e300}.get(directory, 3.0)}

    def stop(self, *ended: str) -> float:
        """How long (seconds) the daemon waits."""
        runners = Runners(self, lambda _launch: {}, "")  # type: ignore[arg-type]  # a stand-in with what is asked of it
        runners.driver = SimpleNamespace(node=SimpleNamespace(settings=SimpleNamespace(kill_grace_s=7.0)))  # type: ignore[assignment]  # as above
        for directory in self.ends_after_s:
            runner = runners.runners[directory] = RunnerHandle(directory, LAUNCH, waits=False)
            if directory in ended:
                runner.ended = True
                self.told[directory] = 0.0

        async def main() -> float:
            begun = trio.current_time()
            self.told = dict.fromkeys(self.told, begun)
            await runners.shut_down("the machine stops", lambda said, left_s: self.waits.append((said, left_s)))
            return trio.current_time() - begun

        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_when_the_machine_stops_the_daemon_outlives_its_runners() -> None:
    runners = Shutdown(short=1.0, long=12.0)
    assert 12.0 <= runners.stop() < 13.0, "or the network is gone before they have reported"
    said, left_s = runners.waits[0]
    assert said == "the machine stops: 2 runs must end and report it"
    assert left_s == 25.0, "the service manager is told what it may take"
    assert runners.waits[-1][0] == "the machine stops: 1 run must end and report it"


def test_a_runner_that_reports_its_end_at_that_moment_is_waited_for() -> None:
    assert 2.0 <= Shutdown(short=2.0).stop("short") < 3.0


def test_a_runner_that_does_not_end_is_waited_for_a_limited_time() -> None:
    for name, unread, waited_s in (("stuck", "", 8.0), ("stuck", "stuck", 12.0), ("odd", "", 65.0)):
        runners = Shutdown(**{name: 1000.0})
        runners.unread.add(unread)
        with capture_logs() as logged:
            assert runners.stop() == pytest.approx(waited_s)
        assert [(line["event"], line["runs"]) for line in logged] == [("runners.not_ended", ["sales#1"])]


def test_without_a_runner_nobody_waits() -> None:
    assert Shutdown().stop() == 0.0


@pytest.mark.parametrize(("name", "times"), [("edge-1", 1), ("edge-old", 0)])
def test_a_start_that_this_node_told_under_an_earlier_name_is_not_told_under_the_new_one(name: str, times: int) -> None:
    fed: list[Any] = []
    runners = Runners(SimpleNamespace(), lambda _: {}, "")
    node = SimpleNamespace(hostname="edge-1", runner_started="started")
    runners.driver = SimpleNamespace(node=node, feed=lambda *said: fed.append(said))  # type: ignore[assignment]  # the same
    runners.saw(TaskStarted(uuid="u", run="sales#1", token=7, nonce="nonce", node=f"{name}.5"))
    adopted = RunnerHandle("run", LAUNCH, waits=False)
    runners._fact(adopted, {"fact": "started", "at": 5.0, "program": 77})
    assert fed == [("started", LAUNCH)] * times
    assert (adopted.started_at, adopted.program) == (5.0, 77)
