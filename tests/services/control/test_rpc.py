"""Lines to requests: every line becomes a request or an error answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from coordd.services.control.rpc import (
    DEPTH_MAX,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LINE_BYTES_MAX,
    PARSE_ERROR,
    Call,
    RpcError,
    error_line,
    notification_line,
    parse,
    result_line,
    take,
)

NUMBERS = st.integers() | st.floats()
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(st.characters(), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(), max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)
REQUESTS = st.dictionaries(
    st.sampled_from(["id", "method", "params", "jsonrpc", "x"]) | st.text(max_size=4), VALUES, max_size=6
)


def refused(line: bytes) -> RpcError:
    with pytest.raises(RpcError) as info:
        parse(line)
    json.loads(error_line(info.value.ident, info.value))  # it can always be said
    return info.value


def nested(depth: int) -> bytes:
    return b'{"id":1,"method":"m","params":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"


def test_the_shortest_request() -> None:
    assert parse(b'{"id":1,"method":"status"}') == Call(1, "status", {}, notification=False)


def test_what_the_standard_allows() -> None:
    assert parse(b'{"jsonrpc":"2.0","id":"a","method":"m","params":{"k":[1]}}') == Call("a", "m", {"k": [1]}, False)
    assert parse(b'{"id":1.5,"method":"m","params":null}') == Call(1.5, "m", {}, notification=False)
    assert parse(b'{"id":null,"method":"m"}') == Call(None, "m", {}, notification=False)
    assert parse(b'{"method":"m"}').notification
    assert parse(b' {"id":1,"method":"m","more":true} \r').method == "m"


@pytest.mark.parametrize(
    ("line", "code", "kind"),
    [
        (b"", PARSE_ERROR, "not_json"),
        (b"status", PARSE_ERROR, "not_json"),
        (b'{"id":1,"method":"status"', PARSE_ERROR, "not_json"),
        (b'{"id":1,"method":"status"} {}', PARSE_ERROR, "not_json"),
        (b"\xff\xfe{}", PARSE_ERROR, "not_utf8"),
        (b'{"id":1,"method":"\xe9"}', PARSE_ERROR, "not_utf8"),
        (b'\xef\xbb\xbf{"id":1,"method":"m"}', PARSE_ERROR, "not_json"),
        (b'{"id":1,"id":2,"method":"m"}', PARSE_ERROR, "not_json"),
        (b'{"id":1,"method":"m","params":{"a":{"b":1,"b":1}}}', PARSE_ERROR, "not_json"),
        (b'{"id":1,"method":"m","params":{"a":NaN}}', PARSE_ERROR, "not_json"),
        (b'{"id":1,"method":"m","params":{"a":-Infinity}}', PARSE_ERROR, "not_json"),
        (b'{"id":1e999,"method":"m"}', PARSE_ERROR, "not_json"),
        (b'{"id":1,"method":"m","params":{"a":-1e999}}', PARSE_ERROR, "not_json"),
        (b'{"id":"\\ud800","method":"m"}', PARSE_ERROR, "not_json"),
        (b'{"id":1,"method":"m","params":{"\\udfff":1}}', PARSE_ERROR, "not_json"),
        (b'{"id":1,"method":"m","params":{"a":' + b"9" * 400 + b"}}", PARSE_ERROR, "not_json"),
        (b"[" * 100_000, PARSE_ERROR, "too_deep"),
        (nested(DEPTH_MAX + 1), INVALID_REQUEST, "too_deep"),
        (b"[]", INVALID_REQUEST, "invalid_request"),
        (b'[{"id":1,"method":"m"}]', INVALID_REQUEST, "invalid_request"),
        (b'"status"', INVALID_REQUEST, "invalid_request"),
        (b"{}", INVALID_REQUEST, "invalid_request"),
        (b'{"id":1,"method":7}', INVALID_REQUEST, "invalid_request"),
        (b'{"id":1,"method":null}', INVALID_REQUEST, "invalid_request"),
        (b'{"id":{},"method":"m"}', INVALID_REQUEST, "invalid_request"),
        (b'{"id":true,"method":"m"}', INVALID_REQUEST, "invalid_request"),
        (b'{"jsonrpc":"1.0","id":1,"method":"m"}', INVALID_REQUEST, "invalid_request"),
        (b'{"id":1,"method":"m","params":[]}', INVALID_PARAMS, "invalid_params"),
        (b'{"id":1,"method":"m","params":"x"}', INVALID_PARAMS, "invalid_params"),
        (b'{"id":1,"method":"m","params":{"x":"' + b"x" * LINE_BYTES_MAX + b'"}}', PARSE_ERROR, "too_large"),
    ],
)
def test_what_is_no_request(line: bytes, code: int, kind: str) -> None:
    error = refused(line)
    assert (error.code, error.kind) == (code, kind)
    assert error.message


def test_an_error_names_the_request_that_it_answers() -> None:
    assert refused(b'{"id":7,"method":3}').ident == 7
    assert refused(b'{"id":"x","method":"m","params":[]}').ident == "x"
    assert refused(nested(DEPTH_MAX + 1)).ident == 1


def test_the_largest_and_the_deepest_that_are_taken() -> None:
    head, tail = b'{"id":1,"method":"m","params":{"x":"', b'"}}'
    full = head + b"x" * (LINE_BYTES_MAX - len(head) - len(tail)) + tail
    assert len(parse(full).params["x"]) > LINE_BYTES_MAX - 100
    assert refused(full + b" ").kind == "too_large"
    assert parse(nested(DEPTH_MAX - 2)).method == "m"


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert parse(b'{"id":1,"method":"m","params":{"a":"\\ud83d\\ude00"}}').params == {"a": "\U0001f600"}


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(line: bytes) -> None:
    try:
        call = parse(line)
    except RpcError as exc:
        json.loads(error_line(exc.ident, exc))
    else:
        assert json.loads(result_line(call.id, call.params))["id"] == call.id


@settings(max_examples=300)
@given(REQUESTS)
def test_no_json_raises_anything_else(request: dict[str, Any]) -> None:
    try:
        call = parse(json.dumps(request).encode())
    except RpcError as exc:
        json.loads(error_line(exc.ident, exc))
    else:
        assert call.method == request["method"]
        assert json.loads(result_line(call.id, call.params)) == {
            "jsonrpc": "2.0",
            "id": request.get("id"),
            "result": request.get("params") or {},
        }


def test_a_file_name_that_is_not_utf8_costs_no_answer() -> None:
    name = b"\xff.toml".decode(errors="surrogateescape")
    line = result_line(1, {"path": name})
    assert json.loads(line)["result"] == {"path": name}


def test_answers_are_one_line_each() -> None:
    for line in (result_line(1, {"a": "x\ny\r\u2028"}), notification_line("m", {"a": "\n"})):
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1


def test_parameters_of_the_wrong_type_are_refused() -> None:
    assert take({"a": 1}, "a", int) == 1
    assert take({}, "a", str, "x") == "x"
    for params, kind in (({"a": True}, int), ({"a": "1"}, int), ({"a": 1}, str), ({"a": []}, dict), ({}, str)):
        with pytest.raises(RpcError) as info:
            take(params, "a", kind)
        assert info.value.code == INVALID_PARAMS
        assert "'a'" in info.value.message
