"""JSON for programs whose start counts: the C parts of the standard library's json, without its Python parts.

To import json costs a runner 8 ms, because it compiles regular expressions.
"""

import _json
from _json import encode_basestring_ascii

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _How:
    """What json.JSONDecoder would say to the C part."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: "dict[str, str]" = {}  # noqa: RUF012 - the C part asks for it, and keeps its own


_SCAN = _json.make_scanner(_How)  # type: ignore[arg-type]  # the stub wants what json itself passes


def decode(text: str) -> "Any":
    """The value in a text of JSON. Raises ValueError."""
    try:
        value, end = _SCAN(text, 0)
        if not text[end:].strip():
            return value
    except (StopIteration, SystemError):  # SystemError: the C part cannot raise its own error without json
        end = 0
    import json  # it says what is wrong; a leading blank is not wrong

    return json.loads(text)


def encode(value: object) -> str:
    """JSON, for texts, numbers, lists, tuples and dicts. Raises TypeError for anything else."""
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, str):
        return str(encode_basestring_ascii(value))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if abs(value) < float("inf") else "null"
    if isinstance(value, dict):
        return "{" + ", ".join([f"{encode(str(key))}: {encode(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join([encode(item) for item in value]) + "]"
    raise TypeError(f"no JSON is made of {type(value).__name__}")
