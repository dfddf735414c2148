"""Which node polls."""

from __future__ import annotations

from hypothesis import given, strategies as st

from coordd.core.triggers.polling import TERM_S, poller, subject, term

NAMES = st.lists(st.sampled_from(["a.1", "b.2", "c.3", "d.4"]), unique=True)


@given(NAMES, st.sets(st.sampled_from(["a.1", "b.2", "c.3", "d.4"])))
def test_somebody_who_is_there_polls_and_all_nodes_agree_who(succession: list[str], eligible: set[str]) -> None:
    chosen = poller("trigger/j/t/7", succession, eligible)
    assert chosen == poller("trigger/j/t/7", succession, frozenset(sorted(eligible, reverse=True)))
    assert (chosen in eligible) if eligible else chosen == ""
    first = next((name for name in succession if name in eligible), None)
    assert first in (None, chosen)


@given(st.text(max_size=10), st.floats(0.0, 1e10))
def test_terms_follow_each_other(of: str, wall: float) -> None:
    assert term(of, wall) <= term(of, wall + TERM_S / 2) <= term(of, wall) + 1
    assert term(of, wall + TERM_S) - term(of, wall) == 1


def test_the_terms_of_triggers_do_not_all_begin_at_once() -> None:
    begin = {next(at for at in range(120) if term(of, at) != term(of, at - 1))
             for of in (subject("j", str(number)) for number in range(50))}  # fmt: skip
    assert len(begin) > 20
