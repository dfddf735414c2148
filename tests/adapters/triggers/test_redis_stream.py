"""A stream of Redis as a queue: nothing is lost before its acknowledgement, and bad entries are put aside."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial

import pytest
import trio
from support import servers

from coordd.adapters.triggers import redis_stream as module
from coordd.adapters.triggers.redis_stream import RedisStream
from coordd.core.triggers.bodies import BODY_BYTES_MAX
from coordd.core.triggers.messages import Batch
from coordd.errors import RefusedError, UnavailableError

LIMIT_S = 60.0
GROUP = "coordd:prod:load:redis"


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Redis]:
    with servers.redis() as running:
        yield running


@pytest.fixture(autouse=True)
def _empty(server: servers.Redis) -> None:
    server.cli("CONFIG", "SET", "requirepass", "")
    server.cli("FLUSHALL")


def stream(server: servers.Redis, password: str = "") -> RedisStream:
    return RedisStream(server.url, "orders", GROUP, password=lambda: password, tls=dict)


def read(queue: RedisStream, most: int = 10) -> Batch:
    async def call() -> Batch:
        with trio.fail_after(LIMIT_S):
            return await queue.read(most)

    return trio.run(call)


def added(server: servers.Redis, *fields: str) -> str:
    return server.cli("XADD", "orders", "*", *fields).strip()


def test_entries_are_read_again_by_any_node_until_they_are_acknowledged(server: servers.Redis) -> None:
    ids = [added(server, "what", f"é{number}") for number in range(5)]
    first, second = stream(server), stream(server)
    found = read(first, 2)
    assert [(one.place, one.ident, dict(one.fields)) for one in found.messages] == [
        (ids[0], ids[0], {"what": "é0"}),
        (ids[1], ids[1], {"what": "é1"}),
    ]
    assert read(first, 0) == Batch([], 5)
    trio.run(first.acknowledge, ids[:1])
    trio.run(first.close)

    assert [one.ident for one in read(second, 2).messages] == ids[1:3]
    assert [one.ident for one in read(second, 10).messages] == ids[1:]
    trio.run(second.acknowledge, ids[1:])
    assert read(second, 10) == Batch([], 0)
    assert [one.digest for one in found.messages] != [found.messages[0].digest] * 2


def test_a_stream_that_is_not_there_yet_begins_with_its_first_entry(server: servers.Redis) -> None:
    queue = stream(server)
    assert read(queue) == Batch([], 0)
    ident = added(server, "what", "1")
    assert [one.ident for one in read(queue).messages] == [ident]
    server.cli("DEL", "orders")
    assert read(queue) == Batch([], 0)


def test_dead_entries_go_back_into_their_stream_or_away(server: servers.Redis) -> None:
    queue = stream(server)
    added(server, "what", "1")
    added(server, "what", "2")
    trimmed = added(server, "what", "3")
    found = read(queue)
    server.cli("XDEL", "orders", trimmed)
    trio.run(queue.put_aside, [(one.place, "bad") for one in found.messages])
    places = {one.ident: one.place for one in read(queue).dead_last}
    first, second, gone = [places[one.ident] for one in found.messages]

    assert trio.run(partial(queue.take_back, first, again=True))
    assert not trio.run(partial(queue.take_back, first, again=True))
    assert trio.run(partial(queue.take_back, second, again=False))
    with pytest.raises(RefusedError, match="its fields were too large, or trimmed"):
        trio.run(partial(queue.take_back, gone, again=True))
    assert trio.run(partial(queue.take_back, gone, again=False))
    assert not trio.run(partial(queue.take_back, "* MAXLEN 0", again=True))

    left = read(queue)
    assert ([dict(one.fields) for one in left.messages], left.dead) == ([{"what": "1"}], 0)


def test_dead_entries_of_others_are_shown_and_go_into_the_stream_whole(server: servers.Redis) -> None:
    """The script's list must not end at what such an entry lacks."""
    queue = stream(server)
    added(server, "what", "1")
    server.cli("XADD", "orders:dead", "*", "what", "alone")
    server.cli("XADD", "orders:dead", "*", "what", "2", "more", "3", "most", "4")
    server.cli("XADD", "orders:dead", "*", "coordd-id", "1-1")
    found = read(queue)
    others = "it was put there by others"
    assert ([(one.ident, one.reason) for one in found.dead_last], found.dead) == (
        [("1-1", ""), ("", others), ("", others)],
        3,
    )
    assert [dict(one.fields) for one in found.messages] == [{"what": "1"}]
    for one in found.dead_last[1:]:
        assert trio.run(partial(queue.take_back, one.place, again=True))
    assert [dict(one.fields) for one in read(queue).messages][1:] == [
        {"what": "2", "more": "3", "most": "4"},
        {"what": "alone"},
    ]


def test_what_cannot_be_kept_aside_is_not_acknowledged(server: servers.Redis) -> None:
    queue = stream(server)
    ident = added(server, "what", "bad")
    read(queue)
    server.cli("SET", "orders:dead", "of another kind")
    with pytest.raises(UnavailableError, match="WRONGTYPE"):
        trio.run(queue.put_aside, [(ident, "bad")])
    server.cli("DEL", "orders:dead")
    assert [one.ident for one in read(queue).messages] == [ident]


def test_an_answer_that_is_not_as_expected_is_a_problem(server: servers.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ", "return {0, 0, {{'1-1'}}, {}}")
    with pytest.raises(UnavailableError, match="TypeError"):
        read(stream(server))


def test_bad_entries_never_leave_the_server_and_are_put_aside_once(
    server: servers.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = "x" * (BODY_BYTES_MAX + 1)
    ids = [added(server, "what", "bad"), *[added(server, "f", large[at : at + 60_000]) for at in (0,)]]
    subprocess.run(
        ["redis-cli", "-p", str(server.port), "-x", "XADD", "orders", "*", "what"],
        input=large.encode(), check=True, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip
    subprocess.run(
        ["redis-cli", "-p", str(server.port), "-x", "XADD", "orders", "*", "what"],
        input=b"\xff\xfe", check=True, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip
    trimmed = added(server, "what", "trimmed")
    one, other = stream(server), stream(server)
    read(one)
    server.cli("XDEL", "orders", trimmed)
    found = read(one)
    assert [message.problem[:20] for message in found.messages] == [
        "", "", "expected at most 655", "expected fields in U", "it was trimmed from ",
    ]  # fmt: skip
    assert [len(message.fields) for message in found.messages] == [1, 1, 0, 0, 0]
    dead = [(found.messages[0].place, "says nothing"), *[(bad.place, bad.problem) for bad in found.messages[2:]]]
    for queue in (one, other):
        trio.run(queue.put_aside, dead)

    left = read(other)
    assert ([message.ident for message in left.messages], left.behind, left.dead) == ([ids[1]], 1, 4)
    assert [(said.ident, said.reason[:12]) for said in left.dead_last] == [
        (place, reason[:12]) for place, reason in reversed(dead)
    ]
    assert "what\nbad" in server.cli("XRANGE", "orders:dead", "-", "+", "COUNT", "1")
    assert int(server.cli("MEMORY", "USAGE", "orders:dead", "SAMPLES", "0")) < BODY_BYTES_MAX

    monkeypatch.setattr(module, "DEAD_MAX", 1)
    for number in range(300):  # Redis trims whole nodes of a stream
        server.cli("XADD", "orders:dead", "*", "coordd-id", str(number), "coordd-reason", "r")
    trio.run(other.put_aside, [(ids[1], "last")])
    assert read(other).dead < 200


def test_a_server_that_refuses_or_is_away_is_named_without_the_password(server: servers.Redis) -> None:
    added(server, "what", "1")
    server.cli("CONFIG", "SET", "requirepass", "s3cret")
    try:
        with pytest.raises(UnavailableError, match=r"Redis at 127.0.0.1:\d+: ") as caught:
            read(stream(server, "wr0ng"))
        assert "wr0ng" not in str(caught.value)
        assert read(stream(server, "s3cret")).behind == 1
    finally:
        subprocess.run(
            ["redis-cli", "-p", str(server.port), "-a", "s3cret", "CONFIG", "SET", "requirepass", ""],
            check=True, capture_output=True, timeout=LIMIT_S,
        )  # fmt: skip
    away = RedisStream(f"redis://127.0.0.1:{servers.free_port()}/0", "orders", GROUP, password=lambda: "", tls=dict)
    with pytest.raises(UnavailableError, match="Redis at"):
        read(away)


def test_a_key_of_another_kind_is_a_problem_and_stays(server: servers.Redis) -> None:
    server.cli("SET", "orders", "mine")
    with pytest.raises(UnavailableError, match="WRONGTYPE"):
        read(stream(server))
    assert server.cli("GET", "orders").strip() == "mine"
