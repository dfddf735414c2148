"""Which node polls."""

from __future__ import annotations

from hypothesis import given, strategies as st

from coordd.core.triggers.polling import TERM_S, poller, subject, term

NAMES = st.lists(st.sampled_from(["a.1", "b.2", "c.3", "d.4"]), unique=True)


NODES = st.sets(st.sampled_from(["a.1", "b.2", "c.3", "d.4"]))


@given(NAMES, NODES, NODES)
def test_somebody_who_is_there_polls_and_all_nodes_agree_who(
    succession: list[str], there: set[str], alike: set[str]
) -> None:
    alike &= there
    chosen = poller("trigger/j/t/7", succession, there, alike)
    assert chosen == poller("trigger/j/t/7", succession, there, frozenset(sorted(alike, reverse=True)))
    assert (chosen in there) if alike else chosen in ("", *(there & set(succession)))
    first = next((name for name in succession if name in there), None)
    assert first in (None, chosen)


def test_nodes_with_other_job_files_go_by_the_same_winner() -> None:
    """A rolling edit of any job makes two groups for a while: there is one poller all the same."""
    there = {"a.1", "b.2", "c.3"}
    assert {poller("trigger/j/t/7", ["b.2", "a.1"], there, alike) for alike in ({"b.2"}, {"a.1", "c.3"})} == {"b.2"}


@given(st.text(max_size=10), st.floats(0.0, 1e10))
def test_terms_follow_each_other(of: str, wall: float) -> None:
    assert term(of, wall) <= term(of, wall + TERM_S / 2) <= term(of, wall) + 1
    assert term(of, wall + TERM_S) - term(of, wall) == 1


def test_the_terms_of_triggers_do_not_all_begin_at_once() -> None:
    begin = {next(at for at in range(120) if term(of, at) != term(of, at - 1))
             for of in (subject("j", str(number)) for number in range(50))}  # fmt: skip
    assert len(begin) > 20
