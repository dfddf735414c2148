"""Programs under a real runner, with a real ledger, ask whether they are the owner, and publish. No daemon is there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coordd import guard
from coordd.adapters.ledger.redis_ledger import RedisLedger
from coordd.core.jobs.owner import COMMITTED
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Claim
from coordd.core.ledger.runner_requests import Commit, Gate, Grant, Registration, Report
from coordd.core.ledger.words import GRANTED, LOST, OK, AttemptNumber, Policy, Token
from coordd.runner.sockets.guard import CONNECTIONS_MAX, GuardAsker
from coordd.services.views.objects import run_view
from system.lab.backends import locked
from system.lab.processes import until
from system.lab.runner_lab import SHORT, Attempt, World, world_in

ROOT = Path(guard.__file__).parents[1]

# Waits for the file "go"; then writes what still_owner says, and publishes "new" as "target".
PUBLISHER = """
import logging, os, sys, time
sys.path.insert(0, os.environ["ROOT"])
from coordd import guard
logging.basicConfig(level=logging.INFO)
here = os.environ["HERE"]
staged = guard.staging(here + "/target")
with open(staged, "w") as file:
    file.write(os.environ["CONTENT"])
with open(os.environ["OUT"], "a") as file:
    print("ready", file=file)
while not os.path.exists(here + "/go"):
    time.sleep(0.01)
print("owner:", guard.still_owner(), flush=True)
guard.publish(staged, here + "/target", timeout_s=float(os.environ.get("LIMIT", "30")))
"""


@pytest.fixture(params=["sqlite", "redis"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    with world_in(tmp_path) as world:
        sqlite, made = world.ledger, None
        if request.param == "redis":
            made = RedisLedger(request.getfixturevalue("redis_url"), cluster=f"guard-{uuid.uuid4().hex}", fresh=True)
            made.accept_epoch()  # else a new ledger waits for witnesses first
            world.ledger = made  # type: ignore[assignment]  # what the lab uses of it, both have
        try:
            yield world
        finally:
            if made is not None:
                made.close()
                world.ledger = sqlite


def begin(world: World, script: str = PUBLISHER, content: str = "new", **changes: Any) -> Attempt:
    """Start a program; returns its attempt when it is ready."""
    argv = [sys.executable, "-I", "-c", script]
    env = changes.pop("env", {})
    spec, attempt = world.spec(argv, **{"renew_interval_s": 20.0, **changes})
    if isinstance(world.ledger, RedisLedger):
        spec["ledger"], spec["ledger_options"] = world.ledger._url, {"cluster": world.ledger.cluster}
    spec["env"].update(ROOT=str(ROOT), HERE=str(world.path), CONTENT=content, LIMIT="30")
    spec["env"].update(COORDD_RUN=spec["run"], COORDD_JOB=spec["job"], COORDD_ATTEMPT="0")
    spec["env"].update(COORDD_TOKEN=str(spec["token"]), **env)
    world.launcher.start(spec)
    return attempt.begun()


def go(world: World) -> None:
    (world.path / "go").touch()


def said(attempt: Attempt) -> str:
    return Path(attempt.directory, "log").read_text()


def grant_of(attempt: Attempt) -> Grant:
    row = attempt.row()
    return Grant(run=row.run, attempt=AttemptNumber(row.attempt), token=Token(row.token), nonce=row.nonce)


def taken_over(world: World, attempt: Attempt) -> Grant:
    """A witness reports the attempt as lost, and another node takes the run over. The runner does not know it yet."""
    of = attempt.row()
    assert world.ledger.ask(Report(grant=grant_of(attempt), state=LOST, reason="a witness said so")).word == OK
    again = Registration(of.run, of.job, of.digest, Policy(on_lost="relaunch"), of.fire_at, scheduled=False)
    claim = Claim(of=again, attempt=AttemptNumber(1), nonce="the other nonce", node="edge-2", lease_s=60.0)
    answer = until(lambda: granted(world.ledger.ask(claim)))
    assert answer is not None
    grant = Grant(run=of.run, attempt=AttemptNumber(1), token=answer.token, nonce="the other nonce")
    assert world.ledger.ask(Gate(grant=grant)).word == OK
    return grant


def granted(answer: object) -> Answer | None:
    assert isinstance(answer, Answer)
    return answer if answer.word == GRANTED else None


def test_the_owner_publishes_and_the_ledger_knows(world: World) -> None:
    attempt = begin(world)
    go(world)
    row = attempt.over()

    assert (row.state, row.commit_token) == ("success", row.token)
    assert run_view(row, redacted=True)["commit_token"] == row.token
    assert (world.path / "target").read_text() == "new"
    assert "owner: True" in said(attempt)


def test_after_a_takeover_the_target_is_unchanged_and_the_log_says_why(world: World) -> None:
    (world.path / "target").write_text("old")
    attempt = begin(world)
    taken_over(world, attempt)
    go(world)
    until(lambda: not attempt.pids())

    assert (world.path / "target").read_text() == "old"
    text = said(attempt)
    assert "owner: False" in text
    assert "LeaseLostError" in text
    assert "the ledger has attempt 1 on edge-2, started, under token" in text
    assert attempt.row().commit_token == 0


def test_a_run_that_waited_for_its_time_publishes_too(world: World) -> None:
    """Its runner has opened other descriptors by then."""
    go(world)
    row = begin(world, fire_at=time.time() + 1.0).over()

    assert (row.state, row.commit_token) == ("success", row.token)


def test_the_next_attempt_is_told_that_an_earlier_one_has_committed(tmp_path: Path) -> None:
    with world_in(tmp_path) as world:
        attempt = begin(world)
        first = grant_of(attempt)
        assert world.ledger.ask(Commit(grant=first)).word == OK
        other = taken_over(world, attempt)

        answer = GuardAsker(world.ledger.url, 5.0).call(Commit(grant=other))
        assert answer is not None
        assert (answer.word, answer.token) == (COMMITTED, first.token)
        assert attempt.row().commit_token == first.token


def test_a_run_is_published_by_one_attempt_even_if_both_try(world: World) -> None:
    """The second one has committed by the time that the first one asks."""
    attempt = begin(world)
    other = taken_over(world, attempt)
    assert world.ledger.ask(Commit(grant=other)).word == OK
    go(world)
    until(lambda: not attempt.pids())

    assert attempt.row().commit_token == other.token
    assert not (world.path / "target").exists()


def test_a_frozen_program_that_thaws_after_a_takeover_leaves_the_target_unchanged(world: World) -> None:
    """The program is stopped, and so is everything else of its node. The other node publishes meanwhile."""
    attempt = begin(world, env={"LIMIT": "1"})
    pids = [*attempt.pids(), attempt.runner(), attempt.watcher()]
    program = attempt.fact("started")["program"]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    taken_over(world, attempt)
    (world.path / "target").write_text("the other's")
    go(world)
    os.kill(program, signal.SIGCONT)
    # The runner is frozen still: its child stays a zombie until the runner looks.
    until(lambda: b"Z" in Path(f"/proc/{program}/stat").read_bytes().rpartition(b")")[2].split()[:1])
    for pid in (attempt.runner(), attempt.watcher()):
        os.kill(pid, signal.SIGCONT)
    until(lambda: not world.launcher.alive(attempt.directory))

    assert (world.path / "target").read_text() == "the other's"
    assert "nobody can tell who owns the run" in said(attempt)


NONSENSE = (b"", b"garbage\n", b"coordd-guard 1 0 {}\n", b"x" * 10_000, b"coordd-guard 1 half", b"\xff" * 100 + b"\n")


def connects(sock: socket.socket, address: str) -> bool:
    try:
        sock.connect(b"\0" + address.encode())
    except BlockingIOError:
        return False  # more wait than fit
    return True


def sockets_of(pid: int) -> int:
    count = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just been closed
            count += os.readlink(path).startswith("socket:")
    return count


OWN_SOCKETS = 4  # for commands, two to a Redis, the guard's own


def test_strangers_and_nonsense_at_its_socket_hurt_nothing(world: World) -> None:
    attempt = begin(world)
    address = environ_of(attempt)["COORDD_GUARD"].removeprefix("abstract:")
    with contextlib.ExitStack() as held:
        for data in NONSENSE:
            for _ in range(CONNECTIONS_MAX):
                sock = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                sock.settimeout(10.0)
                until(partial(connects, sock, address))
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has hung up
                    sock.sendall(data)
        assert sockets_of(attempt.runner()) <= CONNECTIONS_MAX + OWN_SOCKETS
        go(world)
        row = attempt.over()

    assert row.state == "success"
    assert (world.path / "target").read_text() == "new"


ASKS = """
import os, sys, socket, json, hmac, hashlib, encodings.idna  # before their files are out of reach
if len(sys.argv) > 1:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
address = os.environ["COORDD_GUARD"][len("abstract:"):]
question = {"ask": "owner", "run": os.environ["COORDD_RUN"], "attempt": 0, "token": int(os.environ["COORDD_TOKEN"]),
            "id": "1"}
body = json.dumps(question).encode()
proof = hmac.new(os.environ["COORDD_NONCE"].encode(), b"ask\\0" + body, hashlib.sha256).hexdigest().encode()
sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
sock.settimeout(30)
sock.connect(b"\\0" + address.encode())
try:
    sock.sendall(b"coordd-guard 1 " + proof + b" " + body + b"\\n")
    print(sock.recv(10000).decode())
except (BrokenPipeError, ConnectionResetError):
    print()
"""


def environ_of(attempt: Attempt) -> dict[str, str]:
    text = Path(f"/proc/{attempt.fact('started')['program']}/environ").read_text()
    return dict(line.split("=", 1) for line in text.split("\0") if line)


def ask(environ: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-I", "-S", "-c", ASKS, *arguments]
    return subprocess.run(command, env=environ, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_gets_no_answer_even_with_the_nonce(world: World) -> None:
    environ = environ_of(begin(world))

    assert '"word": "ok"' in ask(environ)
    assert ask(environ, "as nobody") == ""
    assert '"word": "refused"' in ask({**environ, "COORDD_NONCE": "another"})
    assert '"word": "refused"' in ask({**environ, "COORDD_TOKEN": "7"})


def test_a_ledger_that_does_not_answer_delays_the_publication(tmp_path: Path) -> None:
    with world_in(tmp_path) as world:
        attempt = begin(world, ledger_timeout_s=0.3)
        with locked(world.ledger.path):
            go(world)
            runner_log = Path(attempt.directory, "runner.log")
            until(lambda: runner_log.exists() and "guard: " in runner_log.read_text())
            assert not (world.path / "target").exists()
        row = attempt.over()

        assert (row.state, row.commit_token) == ("success", row.token)
        assert (world.path / "target").read_text() == "new"


ASKS_AT_THE_END = """
import os, signal, sys, time
sys.path.insert(0, os.environ["ROOT"])
from coordd import guard
def ended(*_):
    print("owner:", guard.still_owner(5.0), flush=True)
    sys.exit(1)
signal.signal(signal.SIGTERM, ended)
with open(os.environ["OUT"], "a") as file:
    print("ready", file=file)
time.sleep(1000)
"""


def test_a_run_that_is_being_cancelled_owns_nothing_any_more(world: World) -> None:
    attempt = begin(world, ASKS_AT_THE_END, **SHORT)
    world.launcher.command(attempt.directory, "cancel", "by a test")
    attempt.over()

    assert "owner: False" in said(attempt)
    assert "the attempt is being ended" in said(attempt)
