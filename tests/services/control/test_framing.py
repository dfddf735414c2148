"""The control socket's lines: the same requests get the same answers, however the bytes are cut into pieces."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
import pytest
import trio
import trio.testing
from hypothesis import given
from support.search import examples

from coordd.services.control import server
from coordd.services.control.callers import ADMIN, Caller, Method
from coordd.services.control.rpc import RpcError, error_line, parse, result_line
from coordd.services.control.server import Connection, ControlServer

LINE_MAX = 200
ROOT = Caller(0, frozenset(), ADMIN, 1, "root")

WORDS = st.sampled_from(("a", "é", "☂", "\U0001f600", "\\n", "x" * 30))
REQUESTS = st.builds(
    lambda number, word: f'{{"id":{number},"method":"echo","params":{{"x":"{word}"}}}}'.encode(),
    st.integers(0, 9),
    WORDS,
)
LINES = REQUESTS | st.sampled_from(
    (
        b"",
        b"  ",
        b"\r",
        b"{",
        b"status",
        b"\xff\xfe",
        b'{"id":1,"method":"\xc3"}',
        b'{"method":"echo"}',
        b'{"id":1,"method":"none"}',
        b"[" * 60,
        b"\0",
        b'{"id":2,"method":"echo"}\r',
        b"y" * LINE_MAX,
    )
)
TOO_LONG = st.sampled_from((b"y" * (LINE_MAX + 1), b'{"id":3,"method":"echo","params":{"x":"' + b"z" * 3 * LINE_MAX))


async def echo(params: dict[str, Any], _: Caller) -> Any:
    return params


SERVER = ControlServer("/nowhere", {"echo": Method(echo)}, operator_group="", viewer_group="")


def expected(data: bytes) -> list[bytes]:
    """The naive reader: it has all bytes at once. Answers come in any order, so they are sorted."""
    answers = []
    *whole, rest = data.split(b"\n")
    for line in [*whole, rest]:
        if len(line) > LINE_MAX:
            too_large = RpcError(-32700, f"a line of more than {LINE_MAX} bytes", kind="too_large")
            answers.append(error_line(None, too_large))
            break  # the rest of the bytes may not be lines
        if not line.strip():
            continue
        try:
            call = parse(line)
        except RpcError as exc:
            answers.append(error_line(exc.ident, exc))
            continue
        if call.notification:
            continue
        if call.method == "echo":
            answers.append(result_line(call.id, call.params))
        else:
            unknown = RpcError(-32601, f"no method {call.method!r}", kind="unknown_method", hint="known: echo")
            answers.append(error_line(call.id, unknown))
    return sorted(answers)


def answers_to(pieces: list[bytes]) -> list[bytes]:
    """What a connection answers to bytes that arrive in these pieces."""
    said = bytearray()

    async def converse() -> None:
        ours, theirs = trio.testing.memory_stream_pair()
        connection = Connection(SERVER, theirs, ROOT)  # type: ignore[arg-type]  # any stream will do
        async with trio.open_nursery() as nursery:

            async def answer() -> None:
                await connection.run()
                await theirs.aclose()

            async def listen() -> None:
                async for data in ours:
                    said.extend(data)

            nursery.start_soon(answer)
            nursery.start_soon(listen)
            with suppress(trio.BrokenResourceError):  # it hangs up after a line that is too long
                for piece in pieces:
                    await ours.send_all(piece)
                    await trio.testing.wait_all_tasks_blocked()
                await ours.send_eof()

    trio.run(converse)
    return sorted(bytes(said).splitlines(keepends=True))


@pytest.fixture(autouse=True, scope="module")
def short_lines() -> Any:
    """A megabyte a line takes long to cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "LINE_BYTES_MAX", LINE_MAX)
        yield


@examples(100)
@given(st.lists(LINES, max_size=6), st.booleans(), st.none() | TOO_LONG, st.data())
def test_any_cutting_of_the_same_bytes_is_answered_alike(
    lines: list[bytes], ends: bool, too_long: bytes | None, data: st.DataObject
) -> None:
    sent = b"\n".join(lines) + (b"\n" if ends else b"")
    if too_long is not None:
        sent = b"\n".join((*lines, too_long, b'{"id":9,"method":"echo"}', b""))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(sent)), max_size=8)))
    pieces = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True) if a != b]

    assert answers_to(pieces) == expected(sent)


def test_byte_by_byte() -> None:
    sent = '{"id":1,"method":"echo","params":{"x":"☂"}}\r\n\n{"id":2,"method":"echo"}'.encode()

    assert answers_to([sent[n : n + 1] for n in range(len(sent))]) == expected(sent)
