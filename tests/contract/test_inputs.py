"""Every ledger: how often inputs of a job have failed."""

from __future__ import annotations

import pytest
from support.ledger_calls import FakeClock, Nodes, swept

from coordd.core.ledger.inputs.memory import FAILURES_MAX, INPUTS_MAX, KEPT_S, WORDS, Seen, Told, key_of, tell, told_of
from coordd.core.ledger.rows import OF_INPUT

RUN = "sales#1"


def say(nodes: Nodes, what: str, name: str = "a", job: str = "sales") -> int:
    answer = tell(nodes.ledger, job, RUN, Told(what, name, 3, f"{what} {name}"), nodes.clock.wall)
    assert answer.word == "ok"
    return answer.token


def test_failures_are_counted_by_job_and_input_and_a_success_forgets_them(nodes: Nodes) -> None:
    assert [say(nodes, "failed") for _ in range(3)] == [1, 2, 3]
    assert (say(nodes, "failed", "b"), say(nodes, "failed", job="sale")) == (1, 1)
    assert say(nodes, "begun") == 4
    assert say(nodes, "interrupted") == 3
    assert say(nodes, "explained") == 3
    assert say(nodes, "asked") == 3
    hold = nodes.ledger.mark(key_of("sales", "a"))
    assert hold is not None
    assert (hold.by, hold.note) == (RUN, "3 3\na\nexplained a")
    assert set(nodes.ledger.marks(f"{OF_INPUT}sales:")) == {key_of("sales", "a"), key_of("sales", "b")}

    assert say(nodes, "passed") == 0
    assert say(nodes, "interrupted", "b") == 0
    assert set(nodes.ledger.marks(OF_INPUT)) == {key_of("sale", "a")}
    assert [say(nodes, what, "new") for what in ("asked", "passed", "explained")] == [0, 0, 0]
    assert nodes.ledger.mark(key_of("sales", "new")) is None


def test_a_failure_is_forgotten_after_its_time_and_no_sweep_tells_it(nodes: Nodes) -> None:
    say(nodes, "failed")
    assert swept(nodes, "sales").holds == {}
    nodes.clock.step(KEPT_S)
    assert say(nodes, "asked") == 0
    assert say(nodes, "failed") == 1


def test_a_job_has_so_many_inputs_that_are_remembered(nodes: Nodes) -> None:
    for number in range(INPUTS_MAX):
        say(nodes, "failed", str(number))
    answer = tell(nodes.ledger, "sales", RUN, Told("failed", "more", 3, ""), nodes.clock.wall)
    assert (answer.token, answer.by) == (0, "not counted: 200 inputs of sales are remembered already")
    assert say(nodes, "failed", "0") == 2
    assert say(nodes, "failed", job="other") == 1
    nodes.clock.step(KEPT_S)
    assert say(nodes, "failed", "more") == 1
    assert len(nodes.ledger.marks(f"{OF_INPUT}sales:")) == 1


@pytest.mark.parametrize("note", ["", "x", "1", "1 x\na\n", "-1 2\na\n", f"{10**30} 1\na\n"])
def test_a_damaged_note_is_no_failure(note: str) -> None:
    assert Seen.read(note) is None


GOOD = {"input": "a", "says": "failed", "limit": 1, "reason": ""}


@pytest.mark.parametrize(
    "bad",
    [{"input": ""}, {"input": "a\n"}, {"input": "ä"}, {"input": "a" * 301}, {"input": 1}, {"reason": None},
     {"reason": "b" * 301}, {"limit": 0}, {"limit": True}, {"limit": FAILURES_MAX + 1}, {"limit": "1"},
     {"says": "eaten"}, {"says": []}],
)  # fmt: skip
def test_what_cannot_be_taken_is_named(bad: dict[str, object]) -> None:
    assert isinstance(told_of(GOOD), Told)
    assert str(told_of({**GOOD, **bad})).startswith("expected ")
    assert "failed" in WORDS


def test_a_mark_moves_with_an_export(nodes: Nodes, clock: FakeClock) -> None:
    assert nodes.clock is clock
    say(nodes, "failed")
    if not hasattr(nodes.ledger, "export"):
        return
    rows = list(nodes.ledger.export())
    say(nodes, "passed")
    nodes.ledger.import_(rows, replace=True)  # type: ignore[attr-defined]  # both kinds can do this
    assert say(nodes, "asked") == 1
