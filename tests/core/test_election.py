"""Elections: one statement per node, a decision when no statement is missing, and the same succession on every node."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, strategies as st

from coordd.core.election import Election, rendezvous
from coordd.core.wire.events import Candidacy

VIEW = ("a.1", "b.2", "c.3")


def election(view: tuple[str, ...] = VIEW) -> Election:
    return Election("sales#1/0", "spark", None, "a.1", view, 10.0)


@pytest.mark.parametrize(
    ("candidacies", "succession"),
    [
        ([(0, 5, "b"), (0, 3, "c"), (0, 4, "a")], ("c", "a", "b")),  # lowest clock first
        ([(0, 5, "b"), (0, 5, "a")], ("a", "b")),  # the name breaks ties
        ([(1, 1, "a"), (0, 9, "b")], ("b", "a")),  # load comes before the clock
        ([(0, 1, "a", "drained"), (0, 9, "b")], ("b",)),  # a node that abstains is not a candidate
        ([(0, 1, "a", "drained")], ()),
        ([(0, 7, "a")], ("a",)),
        ([], ()),
    ],
)
def test_the_succession_is_the_order_of_those_who_stand(
    candidacies: list[tuple[int, int, str]], succession: tuple[str, ...]
) -> None:
    for order in permutations(candidacies):
        ballot = election(())
        for each in order:
            ballot.state(each[2], Candidacy(*each))
        assert ballot.decide(11.0) == succession
        assert [ballot.rank(name) for name in succession] == list(range(len(succession)))
        assert ballot.rank("nobody") is None
        assert ballot.decided_at == 11.0


def test_it_is_complete_when_the_last_of_the_view_has_spoken() -> None:
    ballot = election()
    assert [ballot.state(name, Candidacy(0, 1, name)) for name in ("a.1", "x.9", "b.2", "c.3")] == [
        False,
        False,
        False,
        True,
    ]


def test_the_first_statement_of_each_counts() -> None:
    ballot = election()
    ballot.state("a.1", Candidacy(0, 9, "a.1"))
    ballot.state("b.2", Candidacy(0, 5, "b.2"))
    ballot.state("a.1", Candidacy(0, 1, "a.1"))
    assert ballot.decide(11.0) == ("b.2", "a.1")


def test_a_lost_member_is_not_waited_for_but_what_it_said_counts() -> None:
    ballot = election()
    ballot.state("a.1", Candidacy(0, 1, "a.1"))
    assert not ballot.lose("a.1")  # it has already stated its candidacy, so nothing changes
    assert not ballot.lose("nobody")
    assert not ballot.lose("b.2")
    assert ballot.lose("c.3")
    assert ballot.decide(11.0) == ("a.1",)


def test_nothing_changes_what_was_decided() -> None:
    ballot = election()
    ballot.state("b.2", Candidacy(0, 5, "b.2"))
    assert ballot.rank("b.2") is None
    ballot.decide(11.0)
    assert not ballot.state("a.1", Candidacy(0, 1, "a.1"))
    assert not ballot.state("c.3", Candidacy(0, 1, "c.3"))
    assert not ballot.lose("a.1")
    assert ballot.succession == ("b.2",)
    assert "a.1" not in ballot.statements


@given(st.sets(st.text(min_size=1, max_size=8), min_size=1, max_size=20), st.text(max_size=20), st.randoms())
def test_everybody_computes_the_same_succession_without_messages(names: set[str], ident: str, rng: object) -> None:
    order = sorted(names)
    rng.shuffle(order)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    ranks = rendezvous(ident, tuple(order))
    assert ranks == rendezvous(ident, tuple(sorted(names)))
    assert sorted(ranks) == sorted(names)
    # A node that leaves does not change the order of the others: that is the purpose of this hash.
    assert tuple(name for name in ranks if name != order[0]) == rendezvous(ident, tuple(names - {order[0]}))


def test_the_hash_spreads_runs_over_nodes() -> None:
    names = tuple(f"edge-{n}.1" for n in range(4))
    first = [rendezvous(f"job#{n}", names)[0] for n in range(400)]
    assert min(first.count(name) for name in names) > 60  # a perfect distribution would have 100 each
