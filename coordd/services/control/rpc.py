"""JSON-RPC 2.0, one object per line: parses requests, formats answers. Pure, so that a fuzzer can test it."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from coordd.errors import ConfigError, CoorddError, JobFileError, RefusedError, UnavailableError

# The maximum length of a request. A status call is under 1 KiB; more than this is a mistake or an attack.
LINE_BYTES_MAX = 1024 * 1024

# No method needs deeper nesting; json itself would stop only at Python's recursion limit.
DEPTH_MAX = 32

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
REFUSED = -32000  # valid, but refused; error.data.kind says why


# Digits of a whole number. A float cannot hold one with more; an instant or a duration is far smaller.
DIGITS_MAX = 300


class Call(NamedTuple):
    """One request; ``id`` is None for a notification, which gets no answer."""

    id: Any
    method: str
    params: dict[str, Any]
    notification: bool


class RpcError(Exception):
    """An error answer."""

    def __init__(self, code: int, message: str, *, kind: str, hint: str = "", ident: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.kind = kind
        self.hint = hint
        self.ident = ident


def parse(line: bytes) -> Call:
    """Parse one line (without its end) into a call.

    Raises:
        RpcError: the line is not a valid request; its ``code`` and ``kind`` say why.
    """
    if len(line) > LINE_BYTES_MAX:
        raise RpcError(PARSE_ERROR, f"a line of more than {LINE_BYTES_MAX} bytes", kind="too_large")
    try:
        text = line.decode()
    except UnicodeDecodeError as exc:
        raise RpcError(PARSE_ERROR, f"not UTF-8: {exc}", kind="not_utf8") from exc
    try:
        found = json.loads(
            text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_finite, parse_int=_whole
        )
        if "\\u" in text:
            _no_lone_surrogates(found)
    except RecursionError as exc:
        raise RpcError(PARSE_ERROR, "nested too deeply", kind="too_deep") from exc
    except ValueError as exc:
        raise RpcError(PARSE_ERROR, f"not JSON: {exc}", kind="not_json", hint='try {"id":1,"method":"status"}') from exc
    if not isinstance(found, dict):
        raise RpcError(
            INVALID_REQUEST,
            f"expected one JSON object, found {_name(found)}",
            kind="invalid_request",
            hint='try {"id":1,"method":"status"}',
        )
    if _depth(found) > DEPTH_MAX:
        raise RpcError(INVALID_REQUEST, f"nested deeper than {DEPTH_MAX}", kind="too_deep", ident=_ident(found))
    return _request(found)


def _request(found: dict[str, Any]) -> Call:
    ident = _ident(found)
    if found.get("jsonrpc", "2.0") != "2.0":
        raise RpcError(INVALID_REQUEST, 'jsonrpc must be "2.0" (or left out)', kind="invalid_request", ident=ident)
    if "id" in found and found["id"] is not None and ident is None:
        raise RpcError(INVALID_REQUEST, "id must be text or a number", kind="invalid_request")
    method = found.get("method")
    if not isinstance(method, str):
        raise RpcError(
            INVALID_REQUEST, f"method must be text, found {_name(method)}", kind="invalid_request", ident=ident
        )
    params = found.get("params", {})
    if params is None:
        params = {}
    if not isinstance(params, dict):
        raise RpcError(
            INVALID_PARAMS, f"params must be an object, found {_name(params)}", kind="invalid_params", ident=ident
        )
    return Call(ident, method, params, "id" not in found)


def result_line(ident: Any, result: Any) -> bytes:
    """The answer with a result."""
    return _line({"jsonrpc": "2.0", "id": ident, "result": result})


def error_line(ident: Any, error: RpcError) -> bytes:
    """The answer with an error."""
    data = {"kind": error.kind, "hint": error.hint}
    return _line({"jsonrpc": "2.0", "id": ident, "error": {"code": error.code, "message": error.message, "data": data}})


def notification_line(method: str, params: dict[str, Any]) -> bytes:
    """A message of a stream."""
    return _line({"jsonrpc": "2.0", "method": method, "params": params})


def refused(exc: CoorddError) -> RpcError:
    """An expected failure as an error answer."""
    if isinstance(exc, RefusedError):
        return RpcError(REFUSED, str(exc), kind=exc.kind, hint=exc.hint)
    kinds = ((JobFileError, "bad_job"), (ConfigError, "bad_config"), (UnavailableError, "unavailable"))
    kind = next((kind for of, kind in kinds if isinstance(exc, of)), "failed")
    return RpcError(REFUSED, str(exc), kind=kind)


def _line(message: dict[str, Any]) -> bytes:
    text = json.dumps(message, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=str)
    # A file name that is not UTF-8 contains lone surrogates: escape them, so that the answer can be sent.
    return text.encode(errors="backslashreplace") + b"\n"


def _ident(found: dict[str, Any]) -> Any:
    ident = found.get("id")
    return ident if isinstance(ident, (str, int, float)) and not isinstance(ident, bool) else None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # append and add give None, which is what is wanted
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):  # an answer that repeats 1e999 could not be written
        raise ValueError(f"{text[:40]} is too large a number")
    return number


def _whole(text: str) -> int:
    if len(text) > DIGITS_MAX:
        raise ValueError(f"{text[:40]} is too large a number")
    return int(text)


def _no_lone_surrogates(found: Any) -> None:
    """Refuse "\\ud800": UTF-8 has no such text, so neither the ledger nor an answer could contain it."""
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as exc:
        raise ValueError("a text contains half a surrogate pair") from exc


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level and deepest <= DEPTH_MAX:
        deepest += 1
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return deepest


def _name(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number")


def take_id(params: dict[str, Any]) -> str:
    """The id that the caller gives; "" if there is none.

    Raises:
        RpcError: it is not a text, or empty. An empty id is a mistake of the caller (a variable without a value).
    """
    ident: str = take(params, "id", str, "")
    if not ident and "id" in params:
        message = 'id: expected an id, found ""; leave it out if none is meant'
        raise RpcError(INVALID_PARAMS, message, kind="invalid_params")
    return ident


def take(params: dict[str, Any], name: str, kind: type, default: Any = ...) -> Any:
    """One parameter of the right type.

    Raises:
        RpcError: it is missing, or has the wrong type.
    """
    value = params.get(name, default)
    if value is ...:
        raise RpcError(INVALID_PARAMS, f"the parameter {name!r} is missing", kind="invalid_params")
    if value is default:
        return value
    if not isinstance(value, (int, float) if kind is float else kind) or (
        kind in (int, float) and isinstance(value, bool)
    ):
        wanted = {str: "text", dict: "an object", list: "an array", bool: "true or false"}.get(kind, "a number")
        raise RpcError(
            INVALID_PARAMS, f"the parameter {name!r} must be {wanted}, found {_name(value)}", kind="invalid_params"
        )
    return value
