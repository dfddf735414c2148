"""The JSON of programs whose start counts says what json says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from coordd.adapters.lean_json import decode, encode

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(VALUES)
def test_it_reads_what_json_writes_and_the_other_way_round(value: object) -> None:
    assert decode(json.dumps(value)) == value
    assert json.loads(encode(value)) == value


@pytest.mark.parametrize("text", ["", "{", '{"a"', "[1,", '{"a":1} x', "nul", "'a'"])
def test_what_is_not_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        decode(text)


def test_it_does_not_load_json() -> None:
    code = "import sys; from coordd.adapters.lean_json import decode, encode; decode(encode({'a': [1.5]}))\n"
    code += "assert not {'json', 're'} & set(sys.modules), sys.modules.keys()"
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {sys.path[0]!r}); {code}"],
        check=True,
        cwd="/",
    )
