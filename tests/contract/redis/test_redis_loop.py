"""The Redis ledger on trio's loop: slow servers, lost connections, TLS, Sentinel, and no reply that goes to another
request. (tests/contract/ledger asks it every operation.)
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from support import servers

from coordd.adapters.ledger.redis_loop import RedisLoopLedger, exchange
from coordd.adapters.ledger.resp import NOT_YET, Connection, Problem, Replies, packed_all
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.identity import Known
from coordd.core.ledger.requests import Claim, ListOpen, Register
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.words import AttemptNumber, Policy
from coordd.errors import UnavailableError

# Claims of one batch: two scripts, in one round trip.
BATCH = 64


def asked_for(run: str) -> Registration:
    return Registration(run, "sales", "d1", Policy(overlap="allow"), time.time(), scheduled=False)


def claim(run: str, nonce: str = "n") -> Claim:
    return Claim(of=asked_for(run), attempt=AttemptNumber(0), nonce=nonce, node="edge-1.10", lease_s=60.0)


@pytest.fixture
def connect() -> Iterator[Callable[..., RedisLoopLedger]]:
    made: list[RedisLoopLedger] = []

    def make(url: str, timeout_s: float = 5.0, **options: Any) -> RedisLoopLedger:
        options = {
            "cluster": uuid.uuid4().hex,
            "fresh": True,
            "short_quarantine_s": 0.0,
            "quarantine_s": 0.0,
            **options,
        }
        made.append(RedisLoopLedger(url, timeout_s, **options))
        return made[-1]

    yield make
    for ledger in made:
        ledger.close()


def words(answers: list[Any]) -> set[str]:
    return {answer.word for answer in answers}


def opened(ledger: RedisLoopLedger) -> RedisLoopLedger:
    ledger.ask(ListOpen())
    assert ledger.is_open
    return ledger


# ---- the parser, byte by byte


def test_replies_arrive_in_pieces() -> None:
    said = b"+OK\r\n:-7\r\n*3\r\n$3\r\na\r\n\r\n*0\r\n*2\r\n$-1\r\n-NO way\r\n$2\r\nhi\r\n"
    whole, parts = Replies(), Replies()
    whole.feed(said)
    at_once: list[Any] = [whole.next() for _ in range(4)]
    one_by_one: list[Any] = []
    for byte in said:
        parts.feed(bytes([byte]))
        reply = parts.next()
        if reply is not NOT_YET:
            one_by_one.append(reply)
    for replies in (at_once, one_by_one):
        assert replies[:2] == [b"OK", -7]
        assert replies[2][:2] == [b"a\r\n", []]
        assert (replies[2][2][0], replies[2][2][1].text) == (None, "NO way")
        assert replies[3] == b"hi"


# ---- one connection


def test_a_server_that_reads_and_writes_byte_by_byte() -> None:
    """The request is larger than the socket's buffers, and the reply comes in pieces."""
    listener = socket.create_server(("127.0.0.1", 0))
    connection = Connection("127.0.0.1", listener.getsockname()[1], time.monotonic() + 5.0)
    peer, _ = listener.accept()
    commands: list[tuple[str | bytes, ...]] = [("ECHO", b"x" * 8_000_000), ("PING",)]

    def serve() -> None:
        left = len(packed_all(commands))
        while left:
            left -= len(peer.recv(1_000_000))
        for byte in b"$3\r\nabc\r\n-ERR no\r\n":
            peer.sendall(bytes([byte]))

    async def main() -> list[Any]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, serve)
            with trio.fail_after(20):
                return await exchange(connection, commands)

    replies = trio.run(main)
    assert replies[0] == b"abc"
    assert isinstance(replies[1], Problem)
    for each in (connection, peer, listener):
        each.close()


@pytest.mark.parametrize("said", [b"HTTP/1.1 400\r\n\r\n", b"$5\r\nab", b""])
def test_what_is_no_reply_is_an_unavailable_server(said: bytes) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    connection = Connection("127.0.0.1", listener.getsockname()[1], time.monotonic() + 5.0)
    peer, _ = listener.accept()
    peer.sendall(said)
    peer.close()
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1"):
        trio.run(exchange, connection, [("PING",)])
    connection.close()
    listener.close()


# ---- a ledger


def test_a_burst_is_one_round_trip_and_each_claim_has_its_own_answer(
    redis_url: str, connect: Callable[..., RedisLoopLedger]
) -> None:
    ledger = opened(connect(redis_url))
    burst = [claim(f"sales#{number}") for number in range(BATCH)]
    other = claim("sales#3", nonce="another")

    async def main() -> list[Any]:
        first = await ledger.ask_here([Register(of=one.of) for one in burst])
        assert words(first) == {"ok"}
        return await ledger.ask_here([*burst, other])

    answers = trio.run(main)
    assert words(answers[:BATCH]) == {"granted"}
    assert len({answer.token for answer in answers[:BATCH]}) == BATCH
    assert answers[BATCH].word == "held"


def test_scripts_that_the_server_forgot_are_sent_again(
    own_redis: servers.Redis, connect: Callable[..., RedisLoopLedger]
) -> None:
    ledger = opened(connect(own_redis.url))
    trio.run(ledger.ask_here, [Register(of=claim("sales#1").of)])
    own_redis.cli("SCRIPT", "FLUSH")
    assert words(trio.run(ledger.ask_here, [claim("sales#1")])) == {"granted"}


def test_it_opens_no_connection_and_says_that_one_is_lost(
    own_redis: servers.Redis, connect: Callable[..., RedisLoopLedger]
) -> None:
    ledger = connect(own_redis.url)
    with pytest.raises(UnavailableError, match="not connected"):
        trio.run(ledger.ask_here, [claim("sales#1")])
    opened(ledger)
    own_redis.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    with pytest.raises(UnavailableError, match=r"closed|reset|Broken"):
        trio.run(ledger.ask_here, [claim("sales#1")])
    assert not ledger.is_open
    opened(ledger)
    assert trio.run(ledger.ask_here, [claim("sales#2")])


def test_a_server_that_hangs_costs_the_timeout_and_its_late_reply_reaches_nobody(
    own_redis: servers.Redis, connect: Callable[..., RedisLoopLedger]
) -> None:
    ledger = opened(connect(own_redis.url, timeout_s=0.3))
    own_redis.cli("CLIENT", "PAUSE", "1000", "ALL")
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="no answer in time"):
        trio.run(ledger.ask_here, [claim("sales#1")])
    assert time.monotonic() - began > 0.25
    assert not ledger.is_open
    ledger.timeout_s = ledger._server.timeout_s = 5.0
    opened(ledger)
    (answer,) = trio.run(ledger.ask_here, [Register(of=asked_for("sales#2"))])
    assert isinstance(answer, Answer)
    assert answer.word == "ok"  # and not the answer to the claim


def test_a_request_that_is_cancelled_closes_the_connection(
    own_redis: servers.Redis, connect: Callable[..., RedisLoopLedger]
) -> None:
    ledger = opened(connect(own_redis.url))
    own_redis.cli("CLIENT", "PAUSE", "500", "ALL")

    async def main() -> bool:
        with trio.move_on_after(0.05) as scope:
            await ledger.ask_here([claim("sales#1")])
        return scope.cancelled_caught

    assert trio.run(main)
    assert not ledger.is_open
    assert words([opened(ledger).ask(claim("sales#1"))]) <= {"granted", "held"}


def test_another_ledger_is_refused_as_in_a_thread(
    own_redis: servers.Redis, connect: Callable[..., RedisLoopLedger]
) -> None:
    ledger = opened(connect(own_redis.url, known=Known(proposal="0" * 16)))
    ledger.known.pin = "1" * 16  # it has used another one
    with pytest.raises(UnavailableError, match="it is another ledger"):
        trio.run(ledger.ask_here, [claim("sales#1")])


def test_over_tls(tmp_path: Path, connect: Callable[..., RedisLoopLedger]) -> None:
    made = servers.certificates(tmp_path)
    with servers.redis(tls=made) as own:
        ledger = opened(connect(own.tls_url, tls_ca=made.ca, tls_cert=made.cert, tls_key=made.key))
        burst = [claim(f"sales#{number}", nonce="n" * 60_000) for number in range(BATCH)]
        trio.run(ledger.ask_here, [Register(of=one.of) for one in burst])
        assert words(trio.run(ledger.ask_here, burst)) == {"granted"}
        own.stop()
        with pytest.raises(UnavailableError, match=r"closed|reset|EOF|SSL|Broken"):
            trio.run(ledger.ask_here, burst)


def test_after_a_failover_it_goes_on_at_the_new_primary(connect: Callable[..., RedisLoopLedger]) -> None:
    with servers.sentinels(down_after_ms=500) as cluster:
        ledger = opened(connect(cluster.url))
        assert trio.run(ledger.ask_here, [Register(of=asked_for("sales#1"))])
        before = cluster.master()
        cluster.sentinels[0].cli("SENTINEL", "FAILOVER", "m")
        servers.wait(lambda: cluster.master() != before, "another primary")

        def is_back() -> bool:
            try:
                opened(ledger)
                return bool(trio.run(ledger.ask_here, [Register(of=asked_for("sales#2"))]))
            except UnavailableError:
                return False

        servers.wait(is_back, "it asks the new primary")
