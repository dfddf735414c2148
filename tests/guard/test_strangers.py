"""A listener that does not know the nonce, and texts without an address: this program is not the owner."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from coordd import guard
from guard.fake_runner import GREETING, NONCE, RUN, Answerer

SHORT_S = 0.3
TEXT = b"0" * 32


def environ_of(address: str) -> dict[str, str]:
    about = {"COORDD_RUN": RUN, "COORDD_JOB": "sales", "COORDD_ATTEMPT": "0", "COORDD_TOKEN": "5"}
    return {**about, "COORDD_NONCE": NONCE, "COORDD_GUARD": address}


@pytest.fixture
def stranger() -> Iterator[Callable[[bytes], str]]:
    """Start a listener that answers with these bytes, without a proof; returns its address."""
    made: list[Answerer] = []

    def start(body: bytes) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        line = GREETING + b"x " + body + b"\n"
        made.append(Answerer(listener, lambda _: line, greeting=GREETING + TEXT + b"\n", purpose=b"ask " + TEXT))
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for one in made:
        one.close()


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"null",
        b"5",
        b'"ok"',
        b"[" * 4000,
        b'{"a":' * 1500,
        b"1e400",
        b"\xff",
        b"",
        b'{"word": ["ok"], "token": 0}',
    ],
)
def test_what_a_stranger_says_is_no_answer(stranger: Callable[[bytes], str], body: bytes) -> None:
    assert guard.still_owner(SHORT_S, environ=environ_of(stranger(body))) is False


@pytest.mark.parametrize("address", [",", " , ,", " ", "tcp://127.0.0.1:99999", "tcp://127.0.0.1:70000,", "tcp://:1"])
def test_a_text_without_an_address_is_no_answer(address: str) -> None:
    assert guard.still_owner(SHORT_S, environ=environ_of(address)) is False


def test_addresses_without_an_address_are_named() -> None:
    with pytest.raises(SystemExit, match="COORDD_GUARD not set"):
        guard.gate(SHORT_S, environ=environ_of(","))
