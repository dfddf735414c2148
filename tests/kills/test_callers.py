"""Every call of `coordd exec` has one cause that the record proves; a wrong exit is a violation."""

from __future__ import annotations

import pytest
from system.lab.cluster import Entry

from kills import callers
from kills.callers import Call, account
from kills.judge import Cut

RUN = "tick#1"


def said(word: str, at: float, node: str = "n1", attempt: int = 0) -> Entry:
    return Entry(RUN, attempt, 10 + attempt, node, word, at, at, 1)


LIVES = (said("start", 100.1), said("end", 101.1))
AGAIN = (said("start", 100.1, "n2"), said("start", 109.0, attempt=1), said("end", 110.0, attempt=1))
WINNER = Call("n1", RUN, 99.0, 111.0, 0)
POWER = Cut("n2", 1, 100.5, power=True)


def loser(code: int, *lines: str, ended: float = 111.0) -> Call:
    return Call("n2", RUN, 99.0, ended, code, tuple(f"coordd exec: {line}" for line in lines))


@pytest.mark.parametrize(
    ("call", "lives", "cuts", "cause"),
    [
        (loser(75, f"{RUN} is success: it is over"), LIVES, (), callers.WAITED),
        (loser(-9), LIVES, (POWER,), callers.POWER),
        (loser(69, "no daemon"), LIVES, (Cut("n2", 1, 98.0, power=False),), callers.NO_DAEMON),
        (loser(143, "the lease could not be renewed"), AGAIN, (), callers.LOST),
        (loser(143, "the lease could not be renewed"), AGAIN[1:], (), callers.AT_ONCE),
    ],
)
def test_a_call_is_explained(call: Call, lives: tuple[Entry, ...], cuts: tuple[Cut, ...], cause: str) -> None:
    assert account([WINNER, call], lives, cuts, [RUN]) == ([], {callers.RAN: 1, cause: 1})


@pytest.mark.parametrize(
    ("call", "lives", "cuts"),
    [
        (loser(0), LIVES, ()),
        (loser(75, f"{RUN} was not run here: refused: the lease was too near its end to start"), LIVES, ()),
        (loser(75, f"{RUN} is success: it is over", ended=101.0), LIVES, ()),
        (loser(-9), LIVES, ()),
        (loser(-9), LIVES, (Cut("n2", 1, 100.5, power=False),)),
        (loser(-9), LIVES, (Cut("n2", 1, 98.0, power=True),)),
        (loser(-15), LIVES, (POWER,)),
        (loser(69, "no daemon"), LIVES, ()),
        (loser(143, "the lease could not be renewed"), LIVES, ()),
        (loser(1, "Traceback"), LIVES, ()),
    ],
)
def test_a_wrong_exit_is_noticed(call: Call, lives: tuple[Entry, ...], cuts: tuple[Cut, ...]) -> None:
    violations, _ = account([WINNER, call], lives, cuts, [RUN])
    assert len(violations) == 1
    assert "is not explained" in violations[0]


def test_a_tick_whose_end_no_caller_learned_has_a_cause_or_is_a_violation() -> None:
    killed = Call("n1", RUN, 99.0, 101.2, -9)
    waits = loser(75, f"{RUN} is success: it is over")
    violations, causes = account([killed, waits], LIVES, [Cut("n1", 1, 101.2, power=True)], [RUN])
    assert (violations, causes["ticks whose winner lost its power before it exited"]) == ([], 1)
    violations, _ = account([waits], LIVES, [], [RUN])
    assert violations == [f"{RUN}: no caller returned 0, and the programs ended on ['n1']"]
