"""A part of `make fuzz`, inputs that once failed, and the proof that each fuzzer notices a missing check."""

from __future__ import annotations

import hmac
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordd.adapters import process
from coordd.adapters.bus import amqp_frames
from coordd.adapters.disk import journal
from coordd.adapters.ledger import sqlite_rows
from coordd.config import jobfile
from coordd.core.wire import windows
from coordd.core.wire.journal_line import TAIL_LENGTH
from coordd.services.control import methods
from coordd.services.views import objects
from fuzz import mutate, run

# The first inputs of a seed that `make fuzz` does not begin with.
SEED = 0
INPUTS = {"control": 1000, "files": 1000, "leftovers": 2000, "values": 2000}
INPUTS_ELSE = 3000

PAST = sorted(run.PAST.glob("*/*.txt"))


@pytest.mark.parametrize("name", run.TARGETS)
def test_a_slice(name: str) -> None:
    result = run.run_chunk(name, SEED, 0, INPUTS.get(name, INPUTS_ELSE))
    assert [failure.told for failure in result.failures] == []
    assert len(result.outcomes) > 1, "all inputs meet the same end: this fuzzer looks at one line"


@pytest.mark.parametrize("path", PAST, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_once_failed(path: Path) -> None:
    failure = run.replay(path.parent.name, run.read_inputs(path))
    assert failure is None, failure.told


def test_the_same_numbers_give_the_same_inputs() -> None:
    for name in run.TARGETS:
        assert run.inputs_of(name, SEED, 3, 50) == run.inputs_of(name, SEED, 3, 50)
        assert run.inputs_of(name, SEED, 3, 50) != run.inputs_of(name, SEED, 4, 50)


def test_an_input_is_never_large_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    def three_times(data: bytes, _rng: random.Random, _pool: mutate.Pool) -> bytes:
        given.append(len(data))
        return data * 3

    monkeypatch.setattr(mutate, "STEPS", (three_times,))
    pool = mutate.Pool([b"x" * 100], [], bytes_max=500)
    made = [pool.make(random.Random(seed)) for seed in range(100)]
    assert max(given) == 500, "what a step is given is no longer than an input may be"
    assert max(len(data) for data in made) == 500


def test_a_failure_is_kept_so_that_it_fails_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hmac, "compare_digest", lambda *_: True)
    [failure] = run.run_chunk("bus", SEED, 0, 200).failures[:1]
    path = tmp_path / "1.txt"
    path.write_text(failure.text())
    again = run.replay("bus", run.read_inputs(path))
    assert again is not None
    assert (again.what, len(failure.inputs)) == (failure.what, 1)


def unchecked_line(line: bytes) -> dict[str, Any] | None:
    """journal_line.decode_line without its checksum."""
    try:
        return json.loads(line.removesuffix(b"\n")[:-TAIL_LENGTH] + b"}")  # type: ignore[no-any-return]  # JSON of a known shape
    except ValueError:
        return None


def as_it_stands(fields: struct.Struct, payload: bytes) -> tuple[int, ...]:
    return fields.unpack_from(payload, 4)


BROKEN: list[tuple[str, object, str, Callable[..., Any], str]] = [
    ("bus", hmac, "compare_digest", lambda *_: True, "Wrong"),
    ("bus", windows._Window, "hear", lambda _self, _seq: "", "Wrong: what came a second time"),
    ("amqp", amqp_frames, "_unpacked", as_it_stands, "error: unpack_from requires"),
    ("control", methods, "take", lambda params, name, _kind, default=None: params.get(name, default), "Wrong"),
    ("control", methods.Methods, "_may_operate", lambda *_: None, "Wrong: who may only look"),
    ("files", jobfile._Reading, "failed", lambda _self: False, "Wrong: refused without a reason"),
    ("journal", journal, "decode_line", unchecked_line, "Wrong: read before the repair"),
    ("values", sqlite_rows, "run_fault", lambda _row: "", "Error"),
    ("values", sqlite_rows, "job_fault", lambda _row: "", "Error"),
    ("values", sqlite_rows, "standing_fault", lambda _row: "", "Error"),
    ("values", objects, "run_fault", lambda _row: "", "Error"),
    ("leftovers", process, "says", lambda _record, _needs: True, "Error"),
]


@pytest.mark.parametrize(("name", "place", "word", "instead", "said"), BROKEN)
def test_a_check_that_is_gone_is_noticed(
    name: str, place: object, word: str, instead: Callable[..., Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, word, instead)
    failures = run.run_chunk(name, SEED, 0, 1500).failures
    assert failures, "nothing was noticed"
    assert said in failures[0].what
