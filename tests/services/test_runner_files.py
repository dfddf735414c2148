"""What runners and kept triggers of an earlier life have left is read, whatever a disk has made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coordd.adapters.process import ProcessLauncher
from coordd.adapters.requests import RequestFiles
from coordd.core.rows import Policy, Registration
from coordd.errors import UnavailableError

SPEC: dict[str, Any] = {
    "run": "j#1", "job": "j", "attempt": 0, "token": 1, "nonce": "n", "fire_at": 1.0, "deadline": 5.0,
    "lease_s": 60.0, "cgroup": "",
}  # fmt: skip
GOOD = {"fact": "started", "at": 2.0, "program": 13, "program_start_ticks": 5}
NO_FACTS = [
    "7", "[]", "{}", "[" * 100_000, '{"at": 1.0}', '{"fact": "ended"}', '{"fact": "ended", "at": "soon"}',
    '{"fact": "ended", "at": NaN}', '{"fact": "ended", "at": 1.0, "exit_code": true}',
    '{"fact": "ended", "at": 1.0, "exit_code": 9223372036854775808}', '{"fact": "started", "at": 1.0, "program": 3}',
]  # fmt: skip
NO_SPECS = [
    "7", "[1]", "{}", "[" * 100_000, json.dumps({**SPEC, "token": 2**64}), json.dumps({**SPEC, "run": []}),
    json.dumps({**SPEC, "deadline": float("inf")}), json.dumps({**SPEC, "attempt": False}),
]  # fmt: skip
REQUEST = {
    "run": "j#2", "job": "j", "digest": "d", "policy": Policy().pack(), "fire_at": 1.0, "args": "{}", "by": "x",
}  # fmt: skip
CHANGES: list[dict[str, Any]] = [
    {"run": []}, {"job": {}}, {"policy": "a b"}, {"fire_at": float("nan")}, {"fire_at": "1e999"}, {"args": "[]"},
    {"by": None},
]  # fmt: skip
NO_REQUESTS = ["7", "[" * 100_000, *[json.dumps({**REQUEST, **change}) for change in CHANGES]]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "runs" / "one"
    made.mkdir(parents=True)
    return made


@pytest.mark.parametrize("line", NO_FACTS, ids=range(len(NO_FACTS)))
def test_a_line_that_is_no_fact_is_left_out(tmp_path: Path, directory: Path, line: str) -> None:
    (directory / "facts").write_text(f"{line}\n{json.dumps(GOOD)}\n")
    assert ProcessLauncher(str(tmp_path)).facts(str(directory)) == [GOOD]


@pytest.mark.parametrize("text", NO_SPECS, ids=range(len(NO_SPECS)))
def test_a_spec_that_is_none_is_said_so(tmp_path: Path, directory: Path, text: str) -> None:
    launcher = ProcessLauncher(str(tmp_path))
    (directory / "spec.json").write_text(json.dumps(SPEC))
    assert launcher.spec(str(directory)) == SPEC
    (directory / "spec.json").write_text(text)
    with pytest.raises(UnavailableError, match=r"spec\.json"):
        launcher.spec(str(directory))


@pytest.mark.parametrize("text", NO_REQUESTS, ids=range(len(NO_REQUESTS)))
def test_a_kept_trigger_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    files = RequestFiles(str(tmp_path / "requests"))
    files.keep(Registration("j#1", "j", "d", Policy(), 1.0, scheduled=False, args='{"a": "b"}', by="root"))
    (tmp_path / "requests" / "bad.json").write_text(text)
    found, bad = files.load()
    assert [of.run for of in found] == ["j#1"]
    assert bad == [str(tmp_path / "requests" / "bad.json")]
