"""The socket for the programs of messages' runs: the real program against the real socket."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from outcomes.test_files import LIMIT_S, ROOT
from outcomes.test_message import IDENT, environment

from coordd.config.hooks.delivery import LINE_BYTES_MAX, Delivered, Delivery, socket_path
from coordd.config.hooks.publisher import EXPIRED
from coordd.errors import UnavailableError
from coordd.services.publishing.passing import Passing

TWO = ("amqp://127.0.0.1:1/?queue=q", "amqp://127.0.0.1:2/?queue=q")


class Pool:
    """Connections that take everything, or say something else."""

    def __init__(self, answer: Delivered | Exception) -> None:
        self.asked: list[Delivery] = []
        self._answer = answer

    async def run(self) -> None:
        await trio.sleep_forever()

    async def publish(self, delivery: Delivery) -> Delivered:
        self.asked.append(delivery)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def state(self, *_: Any) -> tuple[int, dict[str, str]]:
        return 0, {}


class Ledger:
    """Knows why the attempts of each run ended; it may be away."""

    def __init__(self, *reasons: str, away: bool = False) -> None:
        self._rows = [SimpleNamespace(reason=reason) for reason in reasons]
        self._away = away

    async def query(self, ask: Callable[[Any], Any]) -> Any:
        if self._away:
            raise UnavailableError("it does not answer")
        return ask(SimpleNamespace(attempts={IDENT: self._rows}.__getitem__))


def while_served(pool: Any, directory: Path, act: Callable[[str], Any], ledger: Any = None) -> Any:
    """What ``act`` says, in a thread, while a daemon serves its socket."""

    async def main() -> Any:
        path = socket_path(str(directory))
        async with trio.open_nursery() as nursery:
            await nursery.start(Passing(path, lambda: pool, ledger).run)
            with trio.fail_after(LIMIT_S):
                said = await trio.to_thread.run_sync(act, path)
            nursery.cancel_scope.cancel()
        return said

    return trio.run(main)


def program(path: str, *to: str, **more: Any) -> subprocess.CompletedProcess[str]:
    argv, env = environment(*to, socket=path, **more)
    return subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_a_message_goes_over_the_connections_of_the_daemon(tmp_path: Path) -> None:
    pool = Pool(Delivered(0, ("amqp://127.0.0.1:1/?queue=q: published to q",)))

    done = while_served(pool, tmp_path, lambda path: program(path, *TWO, "file:///proc/no/x", attempt=1))

    assert (done.returncode, done.stdout) == (0, "amqp://127.0.0.1:1/?queue=q: published to q\n")
    (asked,) = pool.asked
    assert (asked.to, asked.ident, asked.body, asked.kind) == (TWO, IDENT, "hello", "text/plain")
    assert (asked.repeated, round(asked.timeout_s, 3)) == (True, 13.333), (
        "its share; an attempt before may have sent it"
    )


def test_what_the_brokers_do_not_take_goes_to_the_address_behind_them(tmp_path: Path) -> None:
    for answer in (Delivered(124, ("it hangs",), True), UnavailableError("this node stops")):
        done = while_served(Pool(answer), tmp_path, lambda path: program(path, *TWO, f"file://{tmp_path}/lines"))
        assert done.returncode == 0, done.stderr
        assert ("it hangs" in done.stderr) != ("this node stops" in done.stderr)
    assert [json.loads(line)["id"] for line in (tmp_path / "lines").read_text().splitlines()] == [IDENT] * 2


@pytest.mark.parametrize(
    ("ledger", "attempt", "sends"),
    [
        (Ledger("exit code 75: error: it has expired; replayed by ann"), 1, True),
        (Ledger("exit code 1; replayed by ann", "the runner died"), 2, True),
        (Ledger("exit code 1"), 1, False),
        (Ledger(away=True), 1, False),
        (Ledger("exit code 1; replayed by ann"), 0, False),
    ],
    ids=["replayed", "replayed and lost", "tried again", "nobody knows", "the first call asks nobody"],
)
def test_what_a_person_sends_again_is_sent_however_old_it_is(
    tmp_path: Path, ledger: Ledger, attempt: int, sends: bool
) -> None:
    def act(path: str) -> subprocess.CompletedProcess[str]:
        return program(path, f"file://{tmp_path}/lines", age_s=61.0, expires="1m", attempt=attempt)

    done = while_served(None, tmp_path, act, ledger)

    assert (done.returncode, (tmp_path / "lines").exists()) == (0 if sends else EXPIRED, sends), done.stderr


def test_without_an_answer_the_program_connects_itself(tmp_path: Path) -> None:
    done = program(str(tmp_path / "nothing.sock"), TWO[0])
    assert done.returncode == 1
    assert "no daemon answers" in done.stderr
    aged = program(str(tmp_path / "nothing.sock"), f"file://{tmp_path}/x", age_s=61.0, expires="1m", attempt=1)
    assert aged.returncode == EXPIRED
    assert "amqp://127.0.0.1:1/?queue=q cannot be used" in done.stderr


def test_a_daemon_that_is_killed_meanwhile_leaves_the_message_to_the_program(tmp_path: Path) -> None:
    path = str(tmp_path / "msgs.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(program, path, TWO[0], f"file://{tmp_path}/lines")
            link, _ = listening.accept()
            link.recv(LINE_BYTES_MAX)
            link.close()  # without an answer
            done = running.result()
    assert (done.returncode, "this call connects itself" in done.stderr) == (0, True)
    assert json.loads((tmp_path / "lines").read_text())["id"] == IDENT


@pytest.mark.parametrize("line", [b"{}\n", b"no JSON\n", b'{"x":' + b"[" * 90_000 + b"\n", b"x" * (LINE_BYTES_MAX + 1)])
def test_what_is_no_message_gets_no_answer(line: bytes, tmp_path: Path) -> None:
    pool = Pool(Delivered(0, ()))

    def ask(path: str) -> bytes:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(LIMIT_S)
            link.connect(path)
            try:
                link.sendall(line)
                return link.recv(100)
            except ConnectionError:
                return b""

    def then(path: str) -> tuple[bytes, list[Delivery], int]:
        return ask(path), list(pool.asked), program(path, *TWO).returncode

    assert while_served(pool, tmp_path, then) == (b"", [], 0), "and the next one is served"
    assert (os.stat(socket_path(str(tmp_path))).st_mode & 0o777) == 0o600
