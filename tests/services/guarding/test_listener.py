"""Drivers ask a node over TCP: coordd.guard against the real listener and a real ledger."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from support.servers.certs import certificates

from coordd import guard
from coordd.adapters.secrets import tls_listener
from coordd.core.jobs.owner import GREETING, mac
from coordd.core.ledger.runner_requests import Grant
from coordd.errors import ConfigError, UnavailableError
from coordd.services.guarding import listener as module
from coordd.services.guarding.listener import GuardListener
from coordd.services.ledger import LedgerService
from services.guarding.attempts import APP, RUN, Attempts

LIMIT_S = 60.0
SHORT_S = 3.0


@pytest.fixture
def attempts(tmp_path: Path) -> Iterator[Attempts]:
    made = Attempts(tmp_path)
    yield made
    made.ledger.close()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def asked(
    attempts: Attempts, call: Callable[[], Any], *, make_tls: Any = None, open_ledger: Any = None, port: int = 0
) -> Any:
    """Call a driver's function in a thread, while a node listens; COORDD_GUARD is its address."""
    url = attempts.ledger.url
    service = LedgerService(open_ledger or (lambda: type(attempts.ledger)(url)), 2.0)

    async def main() -> Any:
        listening = GuardListener(("127.0.0.1", port), service, make_tls)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listening.run)
            with trio.fail_after(LIMIT_S):
                said = await trio.to_thread.run_sync(partial(call_when_open, port, call))
                while listening._connections:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
            return said

    try:
        return trio.run(main)
    finally:
        service.close()


def call_when_open(port: int, call: Callable[[], Any]) -> Any:
    for _ in range(1000):
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 5.0):
            break
        time.sleep(0.01)
    return call()


class Driver:
    """This process is the driver of an attempt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.port = free_port()
        self._monkeypatch = monkeypatch

    def be(self, grant: Grant, application: str = APP, scheme: str = "tcp", host: str = "127.0.0.1") -> None:
        guard._published.clear()
        guard._prepared.clear()
        said = {
            "COORDD_RUN": grant.run,
            "COORDD_JOB": "sales",
            "COORDD_ATTEMPT": str(grant.attempt),
            "COORDD_TOKEN": str(grant.token),
            "COORDD_NONCE": grant.nonce,
            "COORDD_GUARD": f"tcp://127.0.0.1:1, {scheme}://{host}:{self.port}",  # one node is away
            "CONTAINER_ID": application.replace("application", "container_e01") + "_01_000001",
        }
        for name, value in said.items():
            self._monkeypatch.setenv(name, value)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


def test_the_owner_passes_the_gate_and_publishes(attempts: Attempts, driver: Driver, tmp_path: Path) -> None:
    grant = attempts.begin(APP)
    driver.be(grant)
    target = tmp_path / "target"

    def run() -> list[guard.Published]:
        guard.gate(SHORT_S)
        assert guard.still_owner(SHORT_S)
        staged = Path(guard.staging(str(target)))
        staged.write_text("new")
        return guard.publish(str(staged), str(target), timeout_s=SHORT_S)

    assert asked(attempts, run, port=driver.port) == [guard.Published(str(target), grant.token, "now")]
    assert (target.read_text(), attempts.commit_token) == ("new", grant.token)


def test_a_late_driver_ends_at_the_gate_and_its_target_is_unchanged(
    attempts: Attempts, driver: Driver, tmp_path: Path
) -> None:
    late = attempts.begin()
    attempts.lose()
    attempts.begin("application_1790000000000_0002")
    driver.be(late)
    target, staged = tmp_path / "target", tmp_path / "staged"
    target.write_text("the other's")
    staged.write_text("late")

    def run() -> str:
        with pytest.raises(SystemExit) as ended:
            guard.gate(SHORT_S)
        assert guard.still_owner(SHORT_S) is False
        with pytest.raises(guard.LeaseLostError, match="may not publish"):
            guard.publish(str(staged), str(target), timeout_s=SHORT_S)
        with pytest.raises(guard.LeaseLostError):
            guard.transact(lambda _: pytest.fail("it was called"), timeout_s=SHORT_S)
        return str(ended.value)

    said = asked(attempts, run, port=driver.port)
    assert said.startswith(
        f"coordd.guard: {RUN}, attempt 0 must not begin any more: the ledger has attempt 1 on edge-2"
    )
    assert said.endswith("The program ends before it has done anything")
    assert (target.read_text(), attempts.commit_token) == ("the other's", 0)


def test_a_driver_that_is_adopted_while_it_publishes_publishes_for_who_adopted_it(
    attempts: Attempts, driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = attempts.begin(APP)
    driver.be(first)
    target, staged = tmp_path / "target", tmp_path / "staged"
    staged.write_text("new")
    real = guard._Place.prepare

    def prepare(self: Any, *args: Any, **more: Any) -> None:
        real(self, *args, **more)
        attempts.lose(APP)
        attempts.begin(APP)

    monkeypatch.setattr(guard._Place, "prepare", prepare)
    (done,) = asked(attempts, lambda: guard.publish(str(staged), str(target), timeout_s=SHORT_S), port=driver.port)

    second = attempts.grants[1]
    assert (done.token, done.how, target.read_text()) == (second.token, "now", "new")
    assert attempts.commit_token == second.token
    assert json.loads((tmp_path / ".target.coordd/published.json").read_text())["token"] == second.token


def test_what_an_adopted_driver_left_after_its_commit_is_finished_by_the_next(
    attempts: Attempts, driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = attempts.begin(APP)
    attempts.lose(APP)
    second = attempts.begin(APP)
    driver.be(first)
    target, staged = tmp_path / "target", tmp_path / "staged"
    staged.write_text("of the adopted one")

    def crash(*_: object) -> None:
        raise OSError("a crash")

    def publish() -> list[guard.Published]:
        return guard.publish(str(staged), str(target), timeout_s=SHORT_S)

    def crashes() -> None:
        with pytest.raises(OSError, match="a crash"):
            publish()

    with monkeypatch.context() as patch:
        patch.setattr(guard._Place, "_finish", crash)
        asked(attempts, crashes, port=driver.port)
    attempts.lose()
    third = attempts.begin("application_1790000000000_0003")
    driver.be(third, "application_1790000000000_0003")
    staged.write_text("of the third")
    (done,) = asked(attempts, publish, port=driver.port)

    assert done == guard.Published(str(target), second.token, "finished")
    assert target.read_text() == "of the adopted one"


def test_a_driver_that_starts_before_it_is_adopted_waits(attempts: Attempts, driver: Driver) -> None:
    first = attempts.begin(APP)
    attempts.lose(APP)
    driver.be(first)
    answers: list[str] = []

    def run() -> None:
        real = guard._ask_once

        def once(*args: Any) -> Any:
            said = real(*args)
            answers.append(said[0])
            if answers[-1] == "unknown":
                attempts.begin(APP)
            return said

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(guard, "_ask_once", once)
            patch.setattr(guard, "AGAIN_LISTENERS_S", 0.01)
            guard.gate(SHORT_S)

    asked(attempts, run, port=driver.port)
    assert answers == ["unknown", "ok"]


def test_in_a_quarantine_no_driver_begins_and_those_that_work_go_on(
    attempts: Attempts, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger may have forgotten a later attempt whose driver works."""
    driver.be(attempts.begin(APP))
    monkeypatch.setattr(LedgerService, "recovering_s", 5.0)
    monkeypatch.setattr(guard, "AGAIN_LISTENERS_S", 0.01)
    answers: list[tuple[str, str]] = []
    real = guard._ask_once

    def once(*args: Any) -> Any:
        word, token, why = real(*args)
        answers.append((word, why))
        if word == "unknown":
            monkeypatch.setattr(LedgerService, "recovering_s", 0.0)
        return word, token, why

    def run() -> bool:
        works = guard.still_owner(SHORT_S)
        monkeypatch.setattr(guard, "_ask_once", once)
        guard.gate(SHORT_S)
        return works

    assert asked(attempts, run, port=driver.port)
    assert answers == [("unknown", "the ledger went back, and waits for its witnesses"), ("ok", "")]


@pytest.mark.parametrize("wrong", ["nonce", "token", "run"])
def test_who_has_not_the_nonce_learns_nothing(wrong: str, attempts: Attempts, driver: Driver) -> None:
    grant = attempts.begin(APP)
    said: dict[str, Any] = {"run": grant.run, "attempt": grant.attempt, "token": grant.token, "nonce": grant.nonce}
    said[wrong] = {"nonce": "another", "token": grant.token + 1, "run": "sales#9"}[wrong]
    driver.be(Grant(**said))

    def run() -> str:
        with pytest.raises(guard.LeaseLostError) as lost:
            guard.transact(lambda _: pytest.fail("it was called"), timeout_s=SHORT_S)
        return str(lost.value)

    assert "nobody can tell" in asked(attempts, run, port=driver.port)
    assert attempts.commit_token == 0


def talk(port: int, line: Callable[[bytes], bytes], source: str = "127.0.0.1") -> bytes:
    """One connection; returns all that the listener says after its greeting."""
    connected = socket.create_connection(("127.0.0.1", port), 10.0, source_address=(source, 0))
    with connected as sock, sock.makefile("rb") as file:
        try:
            challenge = file.readline()[len(GREETING) : -1]
        except OSError:
            return b""
        with contextlib.suppress(OSError):
            sock.sendall(line(challenge))
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        try:
            return file.read()
        except OSError:
            return b""


def signed(grant: Grant, challenge: bytes, ask: str = "commit") -> bytes:
    about = {"run": grant.run, "attempt": grant.attempt, "token": grant.token, "id": "1"}
    body = json.dumps({**about, "ask": ask, "application": APP, "holder": grant.token}).encode()
    return GREETING + mac(grant.nonce, b"ask " + challenge, body) + b" " + body + b"\n"


def test_a_question_that_was_overheard_is_refused_the_second_time(attempts: Attempts) -> None:
    grant, port, heard = attempts.begin(APP), free_port(), []

    def run() -> tuple[bytes, bytes]:
        def owner(challenge: bytes) -> bytes:
            heard.append(signed(grant, challenge, "owner"))
            return heard[0]

        return talk(port, owner), talk(port, lambda _: heard[0])

    first, second = asked(attempts, run, port=port)
    assert b'"word": "ok"' in first
    assert b'"word": "refused"' in second
    assert grant.nonce.encode() not in heard[0] + first


NONSENSE = (b"", b"\n", b"garbage\n", b"coordd-guard 1 0 {}\n", b"coordd-guard 1 half", b"\xff" * 100 + b"\n",
            b"coordd-guard 1 0 " + b"[" * 3000 + b"\n", b"x" * 100_000)  # fmt: skip


def test_strangers_and_nonsense_hurt_nothing(attempts: Attempts) -> None:
    grant, port = attempts.begin(APP), free_port()

    def run() -> list[bytes]:
        answers = [talk(port, lambda _, data=data: data) for data in NONSENSE]  # type: ignore[misc]  # data is bytes
        silent = [
            socket.create_connection(("127.0.0.1", port), 10.0, source_address=(f"127.0.0.{peer}", 0))
            for peer in range(1, 1 + module.CONNECTIONS_MAX // module.PEER_CONNECTIONS_MAX)
            for _ in range(module.PEER_CONNECTIONS_MAX)
        ]
        turned_away = talk(port, lambda challenge: signed(grant, challenge), "127.0.0.99")
        for sock in silent:
            sock.close()
        answers.append(turned_away)
        for _ in range(200):
            if said := talk(port, lambda challenge: signed(grant, challenge)):
                break
        return [*answers, said]

    *answers, turned_away, last = asked(attempts, run, port=port)
    assert all(b'"refused"' in said or not said for said in answers)
    assert turned_away == b""
    assert b'"word": "ok"' in last


def test_one_machine_does_not_take_the_places_of_all(attempts: Attempts) -> None:
    grant, port = attempts.begin(APP), free_port()

    def run() -> tuple[bytes, bytes]:
        silent = [socket.create_connection(("127.0.0.1", port), 10.0) for _ in range(module.PEER_CONNECTIONS_MAX)]
        own = talk(port, lambda challenge: signed(grant, challenge))
        other = talk(port, lambda challenge: signed(grant, challenge), "127.0.0.2")
        for sock in silent:
            sock.close()
        return own, other

    own, other = asked(attempts, run, port=port)
    assert own == b""
    assert b'"word": "ok"' in other


def test_a_silent_client_is_let_go(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUESTION_S", 0.05)
    port = free_port()

    def run() -> bytes:
        with socket.create_connection(("127.0.0.1", port), 10.0) as sock, sock.makefile("rb") as file:
            return file.read()

    assert asked(attempts, run, port=port).startswith(GREETING)


def test_without_its_ledger_a_node_says_no(attempts: Attempts, driver: Driver) -> None:
    driver.be(attempts.begin(APP))

    def gone() -> Any:
        raise UnavailableError("the ledger is away")

    def run() -> str:
        with pytest.raises(guard.LeaseLostError) as lost:
            guard.transact(lambda _: pytest.fail("it was called"), timeout_s=0.5)
        return str(lost.value)

    assert "nobody can tell who owns the run" in asked(attempts, run, open_ledger=gone, port=driver.port)


@pytest.mark.parametrize("trusts", [True, False])
def test_over_tls_a_driver_asks_only_a_listener_that_it_trusts(
    trusts: bool, attempts: Attempts, driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tls").mkdir()
    (tmp_path / "other").mkdir()
    ours, others = (certificates(tmp_path / name, "localhost") for name in ("tls", "other"))
    driver.be(attempts.begin(APP), scheme="tls", host="localhost")
    monkeypatch.setenv("COORDD_GUARD_AUTHORITY", Path((ours if trusts else others).ca).read_text())

    said = asked(
        attempts,
        lambda: guard.still_owner(SHORT_S),
        make_tls=lambda: tls_listener(str(ours.cert), str(ours.key)),
        port=driver.port,
    )
    assert said is trusts


def test_a_certificate_that_cannot_be_read_is_a_no_and_is_named(
    attempts: Attempts, driver: Driver, tmp_path: Path
) -> None:
    driver.be(attempts.begin(APP), scheme="tls", host="localhost")

    def absent() -> Any:
        return tls_listener(f"{tmp_path}/absent.pem", "")

    with pytest.raises(ConfigError, match=r"tls_cert: .*absent.pem"):
        absent()
    assert asked(attempts, lambda: guard.still_owner(0.5), make_tls=absent, port=driver.port) is False
