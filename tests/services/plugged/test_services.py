"""Services of packages: real processes, whatever they do, and what becomes of them."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from plugins.written import hosting, written

from coordd.config.plugged.services import ServiceTable
from coordd.services.breakers.view import connection_view
from coordd.services.ledger import boottime
from coordd.services.plugged import process, supervising
from coordd.services.plugged.process import served
from coordd.services.plugged.supervising import READY, STOPPED, WAITING, Service, Services
from coordd.services.programs import child as program

SERVICES = """
import os, signal, sys, time

def good(of):
    of.ready(f"{of.name} on {of.node} of {of.cluster}")
    while True:
        time.sleep(0.05)
        of.status("still here")

async def trio_one(of):
    import trio
    of.ready("trio")
    await trio.sleep_forever()

def raises(of):
    of.ready()
    raise ValueError("it is\\nFriday")

def returns(of):
    of.ready("soon over")

def ends(of):
    sys.exit(3)

def dies(of):
    os.abort()

def never_ready(of):
    while True:
        pass

def silent(of):
    of.ready("then nothing")
    while True:
        pass

def leaks(of):
    of.ready()
    kept = []
    while True:
        kept.append(bytearray(2**20))

def stubborn(of):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        time.sleep(600)
    of.ready(str(os.getpid()))
    time.sleep(600)

def floods(of):
    print("password=geheim " + "x" * 10**6)
    for _ in range(10**4):
        print("y" * 200)
    raise OSError("done")
"""

LATER = """
import os, time
def later(of):
    assert os.path.exists({flag!r})
    of.ready()
    time.sleep(600)
"""

NAMES = [
    "good",
    "trio_one",
    "raises",
    "returns",
    "ends",
    "dies",
    "never_ready",
    "silent",
    "leaks",
    "stubborn",
    "floods",
]
ABOUT = {"node": "edge-1", "cluster": "main", "socket": "/run/x.sock"}
LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    written(tmp_path / "bad", "coordd.services", SERVICES, *NAMES)
    host = hosting(tmp_path / "bad")
    monkeypatch.setattr(program, "HOST", host)
    return host


def serve(name: str, **other: float) -> tuple[str, list[tuple[str, str]]]:
    """Why it ended, and what it said."""
    said: list[tuple[str, str]] = []

    async def main() -> str:
        with trio.fail_after(LIMIT_S):
            table = ServiceTable(name=name, **{"start_timeout_s": LIMIT_S, **other})  # type: ignore[arg-type]  # as a test says
            return await served(table, ABOUT, lambda word, text: said.append((word, text)))

    return trio.run(main), said


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("raises", "it failed: ValueError: it is Friday"),
        ("returns", "it returned; a service serves until it is ended"),
        ("ends", "it called exit(3)"),
        ("dies", "signal 6 ended it"),
        ("floods", "it failed: OSError: done"),
        ("gone", "it failed: LookupError: no installed package brings gone (entry points, group coordd.services)"),
    ],
)
def test_its_end_has_a_reason(name: str, why: str) -> None:
    assert serve(name)[0] == why


def test_one_that_is_not_ready_in_time_is_ended() -> None:
    assert serve("never_ready", start_timeout_s=1.0) == ("it was not ready within 1 s", [])


def test_one_that_is_silent_is_ended_by_its_watchdog() -> None:
    why, said = serve("silent", watchdog_s=1.0)
    assert (why, said) == ("it said nothing within 1 s", [("ready", "then nothing")])


def test_one_that_leaks_fails_alone() -> None:
    assert serve("leaks", memory=256 * 2**20)[0] == "it failed: MemoryError"


def test_the_log_takes_a_bounded_part_of_its_output_and_no_secret(capfd: pytest.CaptureFixture[str]) -> None:
    serve("floods")
    text = "".join(capfd.readouterr())
    assert 90 < text.count("service.said") <= process.LINES_MAX
    assert "geheim" not in text
    assert max(map(len, text.splitlines())) < 2 * program.LINE_MAX


@pytest.mark.parametrize("name", ["good", "trio_one"])
def test_it_ends_with_its_daemon_however_that_ends(name: str, packages: list[str]) -> None:
    context = '{"name": "x", "node": "n", "cluster": "c", "socket": "s"}'
    argv, pipe = [*packages, "coordd.services", name, context], subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, start_new_session=True) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline().startswith(b"ready ")
        child.stdin.close()
        assert child.wait(LIMIT_S) == -signal.SIGKILL


def watched(name: str, wanted: Callable[[Service], bool], **other: float) -> Service:
    """The service once it is as wanted. Then it is ended."""

    async def main() -> Service:
        table = ServiceTable(name=name, start_timeout_s=LIMIT_S, **other)  # type: ignore[arg-type]  # as a test says
        services = Services([table], ABOUT)
        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(services.run)
                while not (services.running and wanted(services.running[name])):
                    await trio.sleep(0.01)
                services.use(())
                kept = services.running[name]
                seen = kept.check()
                while services.running:
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
        kept.text = seen["text"]
        return kept

    return trio.run(main)


def test_a_service_is_ready_and_says_how_it_is() -> None:
    service = watched("good", lambda one: one.text == "still here")
    assert service.text == "ready, started 1 times: still here"


def test_one_that_fails_is_started_again_until_its_breaker_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "PAUSE_MIN_S", 0.01)
    service = watched("raises", lambda one: one.state == STOPPED)
    assert (service.starts, service.breaker.state) == (supervising.FAILURES_MAX, "open")
    assert service.text == "stopped by its breaker, started 5 times: it failed: ValueError: it is Friday"
    now = boottime()
    view = connection_view(service.breaker, now, 1_738_137_600.0)
    assert (view["name"], view["kind"], view["state"], view["failures"]) == ("service:raises", "service", "open", 5)
    assert 0 < view["retry_in_s"] <= supervising.OPEN_MIN_S
    assert view["reason"] == "it failed: ValueError: it is Friday"
    service.breaker.reset(now)
    assert service.breaker.allow(now), "a person has it started at once"


def test_a_breaker_lets_one_start_try_and_a_service_that_works_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PAUSE_MIN_S": 0.01, "OPEN_MIN_S": 0.1, "STABLE_S": 0.1}.items():
        monkeypatch.setattr(supervising, name, value)
    flag = tmp_path / "works"
    written(tmp_path / "later", "coordd.services", LATER.format(flag=str(flag)), "later")
    monkeypatch.setattr(program, "HOST", hosting(tmp_path / "later"))

    def wanted(one: Service) -> bool:
        if one.breaker.opened:
            flag.touch()
        return one.state == READY and not one.breaker.is_open and one.starts > supervising.FAILURES_MAX

    assert watched("later", wanted).breaker.opened >= 1


def test_an_end_is_a_pause_and_then_a_start() -> None:
    service = watched("returns", lambda one: one.starts == 2)
    assert service.state in ("starting", READY, WAITING)


def test_one_that_ignores_term_is_killed_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_S", 0.1)
    service = watched("stubborn", lambda one: one.state == READY)
    pid = int(service.text.rpartition(" ")[2])
    group = subprocess.run(["ps", "-o", "stat=", "-g", str(pid)], capture_output=True, text=True, check=False)
    assert [state for state in group.stdout.split() if not state.startswith("Z")] == []
