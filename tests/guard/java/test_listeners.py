"""A driver on a cluster: it asks the listeners of the nodes, and believes only what is proved."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from services.guarding.attempts import APP, RUN, Attempts
from services.guarding.test_listener import asked, attempts, free_port
from support.servers.certs import certificates

from coordd.adapters.secrets import tls_listener
from coordd.core.ledger.runner_requests import Grant
from coordd.core.ledger.words import AttemptNumber, Token
from guard.fake_runner import GREETING, NONCE, Answerer, Reply, signed
from guard.java.driver import ask
from guard.test_questions import BAD, yes

__all__ = ["attempts"]  # the fixture

GRANT = Grant(run=RUN, attempt=AttemptNumber(0), token=Token(5), nonce=NONCE)
PROPERTIES = ("run", "job", "attempt", "token", "token.nonce", "guard")


def conf_of(attempt: Grant, *addresses: str, application: str = APP) -> dict[str, str]:
    """As a cluster manager hands it to the driver."""
    said = (attempt.run, "sales", str(attempt.attempt), str(attempt.token), attempt.nonce, ", ".join(addresses))
    conf = {f"spark.coordd.{name}": value for name, value in zip(PROPERTIES, said, strict=True)}
    return {**conf, "spark.yarn.app.id": application}


def container(application: str = APP) -> Mapping[str, str]:
    return {"CONTAINER_ID": application.replace("application", "container_e01") + "_01_000001"}


def test_the_owner_passes_the_gate_and_commits(attempts: Attempts, classes: Path) -> None:
    grant, port = attempts.begin(APP), free_port()
    conf = conf_of(grant, "tcp://127.0.0.1:1", f"tcp://127.0.0.1:{port}")  # one node is away
    by_container = {name: value for name, value in conf.items() if name != "spark.yarn.app.id"}

    def run() -> list[str]:
        gate = ask(classes, "gate", "20", conf=by_container, environ=container())
        return [gate.stdout, ask(classes, "transact", "20", conf=conf).stdout]

    went, written = asked(attempts, run, port=port)
    assert went == "it went on\n"
    assert written == f"coordd:{RUN} {RUN} 0 {grant.token} 1\n"
    assert attempts.commit_token == grant.token


def test_a_late_driver_ends_at_the_gate_and_writes_nothing(attempts: Attempts, classes: Path) -> None:
    late, port = attempts.begin(), free_port()
    attempts.lose()
    attempts.begin("application_1790000000000_0002")
    conf = conf_of(late, f"tcp://127.0.0.1:{port}")

    gate, write = asked(
        attempts, lambda: [ask(classes, what, "20", conf=conf) for what in ("gate", "transact")], port=port
    )
    assert (gate.returncode, gate.stdout) == (1, "")
    assert f"coordd.guard: {RUN}, attempt 0 must not begin any more: the ledger has attempt 1 on edge-2" in gate.stderr
    assert (write.returncode, write.stdout, attempts.commit_token) == (1, "", 0)


def test_an_adopted_driver_commits_for_the_attempt_that_adopted_it(attempts: Attempts, classes: Path) -> None:
    first, port = attempts.begin(APP), free_port()
    attempts.lose(APP)
    second = attempts.begin(APP)
    conf = conf_of(first, f"tcp://127.0.0.1:{port}")

    done = asked(attempts, lambda: ask(classes, "transact", "20", conf=conf), port=port)
    assert done.returncode == 0, done.stderr
    assert attempts.commit_token == second.token


@pytest.mark.parametrize(
    ("vouches", "named"), [("ours", "localhost"), ("another", "localhost"), ("ours", "elsewhere.example")]
)
def test_over_tls_it_asks_only_a_listener_that_it_trusts(
    vouches: str, named: str, attempts: Attempts, classes: Path, tmp_path: Path
) -> None:
    made = {}
    for name, host in (("ours", named), ("another", "localhost")):
        (tmp_path / name).mkdir()
        made[name] = certificates(tmp_path / name, host)
    port, trusts = free_port(), vouches == "ours" and named == "localhost"
    conf = conf_of(attempts.begin(APP), f"tls://localhost:{port}")
    conf["spark.coordd.guard.authority"] = Path(made[vouches].ca).read_text()

    done = asked(
        attempts,
        lambda: ask(classes, "owner", "20" if trusts else "2", conf=conf),
        make_tls=lambda: tls_listener(str(made["ours"].cert), str(made["ours"].key)),
        port=port,
    )
    assert done.stdout == f"{str(trusts).lower()}\n", done.stderr


# ---- programs that only say that they are listeners


class Listener(Answerer):
    """Greets, and answers as a test says."""

    def __init__(self, reply: Reply, version: bytes = GREETING) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        super().__init__(listener, reply, greeting=version + b"00ff\n", purpose=b"ask 00ff")


@pytest.fixture
def listening() -> Iterator[Callable[..., Listener]]:
    made: list[Listener] = []

    def listen(*about: Any) -> Listener:
        made.append(Listener(*about))
        return made[-1]

    yield listen
    for one in made:
        one.close()


def test_anything_but_a_clear_yes_is_a_no(listening: Callable[..., Listener], classes: Path) -> None:
    liars = [listening(reply) for reply in BAD.values()]
    liars.append(listening(lambda question: signed(yes(question)), b"coordd-guard 2 "))
    liars.append(listening(lambda question: signed(yes(question)).replace(b'"token": 0', b'"token": [0]')))
    honest = [
        listening(lambda question: signed({"id": question["id"], "word": "ok", "token": 5, "why": 'ü "\\ \t'})),
        listening(lambda question: signed({"id": question["id"], "word": "committed", "token": 4, "why": ""})),
    ]
    addresses = [one.address for one in (*liars, *honest)]

    done = ask(classes, "each", "0.5", *addresses, conf=conf_of(GRANT, "tcp://127.0.0.1:1"))
    assert done.stdout.split() == ["false"] * len(liars) + ["true"] * len(honest), done.stderr
    assert all(NONCE.encode() not in line for one in liars for line in one.heard)
    assert sum(len(one.heard) for one in liars) >= len(BAD)


def test_a_driver_that_is_adopted_while_it_commits_commits_for_who_adopted_it(
    listening: Callable[..., Listener], classes: Path
) -> None:
    def reply(question: dict[str, Any], *, moves_to: int) -> bytes:
        word, token = ("ok", question["holder"] or 5)
        if question["ask"] == "commit" and question["holder"] == 5:
            word, token = "moved", moves_to
        return signed({"id": question["id"], "word": word, "token": token, "why": "moved"})

    adopted, backwards = (listening(partial(reply, moves_to=token)) for token in (9, 5))
    done, none = (ask(classes, "transact", "20", conf=conf_of(GRANT, one.address)) for one in (adopted, backwards))

    holders = [json.loads(line.split(b" ", 3)[3])["holder"] for line in adopted.heard]
    assert (done.returncode, holders) == (0, [0, 5, 9]), done.stderr
    assert (none.returncode, len(backwards.heard)) == (1, 2), "it does not ask for ever"


def test_who_says_a_byte_now_and_then_before_a_certificate_does_not_hold_the_driver(classes: Path) -> None:
    sent: list[int] = []

    def dribble(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with sock, contextlib.suppress(OSError):
            sock.recv(4096)
            for one in b"\x16\x03\x03\x3f\x00\x02" + bytes(100):  # a long record of a handshake
                sock.sendall(bytes([one]))
                sent.append(one)
                time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=dribble, args=(listener,), daemon=True)
        thread.start()
        done = ask(classes, "owner", "1", conf=conf_of(GRANT, f"tls://localhost:{port}"))
        thread.join()

    assert done.stdout == "false\n"
    assert 0 < len(sent) < 106, "it hung up"
