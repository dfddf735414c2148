"""A node hears messages about members in any order, and twice. These properties must not depend on the order.

In general the order matters: a member is alive if it was *heard* recently, and a proof of death or a good-bye has its
effect at its place in the order. But for messages of one instant these properties hold in every order:

- the same incarnation is current: the one with the highest boot number;
- a good-bye is final for its incarnation, whatever other messages of it arrive before or after;
- a message that arrives a second time changes nothing visible, and announces nothing.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import hypothesis.strategies as st
from hypothesis import given
from support.search import examples

from coordd.core.members.membership import ALIVE, LEFT, Membership, boot_count
from coordd.core.wire.events import PeerSummary

HOSTS = ("edge-1", "edge-2")


class Said(NamedTuple):
    """One message. A ``hello`` contains its sender's knowledge of the other nodes."""

    kind: str  # heartbeat, offline, or hello
    hostname: str
    boot: int
    clock: int

    @property
    def incarnation(self) -> str:
        return f"{self.boot}-aa"


said = st.builds(
    Said,
    st.sampled_from(("heartbeat", "heartbeat", "offline", "hello")),
    st.sampled_from(HOSTS),
    st.integers(1, 3),
    st.integers(1, 9),
)
deliveries = st.lists(said, min_size=1, max_size=10)


def deliver(members: Membership, one: Said, others: list[PeerSummary]) -> None:
    """Deliver a message as core.node does: first it shows that the sender is alive, then it is handled."""
    member = members.hear(one.hostname, one.boot, one.incarnation, one.clock, 0.0)
    if member is None:
        return
    if one.kind == "offline":
        members.offline(member, one.clock)
    elif one.kind == "hello":
        members.told(others, 0.0, vouched=False)


def seen(members: Membership) -> dict[str, tuple[Any, ...]]:
    """The visible state of the members."""
    return {
        name: (member.incarnation, member.pid, member.clock, member.state, member.heard_at)
        for name, member in sorted(members.members.items())
    }


def after(told: list[Said]) -> Membership:
    members = Membership("me.1", 2.0)
    for one in told:
        deliver(members, one, [])
    return members


def expected(told: list[Said]) -> dict[str, tuple[Any, ...]]:
    """The simple rule: for each host the highest boot with its highest clock. It has left if it ever said good-bye."""
    view = {}
    for host in sorted({one.hostname for one in told}):
        mine = [one for one in told if one.hostname == host]
        boot = max(one.boot for one in mine)
        current = [one for one in mine if one.boot == boot]
        state = LEFT if any(one.kind == "offline" for one in current) else ALIVE
        view[host] = (f"{boot}-aa", boot, max(one.clock for one in current), state, 0.0)
    return view


@examples(200)
@given(deliveries, st.randoms(use_true_random=False))
def test_every_order_ends_in_the_same_view(told: list[Said], rng: random.Random) -> None:
    """Only if the latest incarnation has not said good-bye. Otherwise late messages of an
    older incarnation may replace it.
    """
    told = [one for one in told if one.kind != "offline" or one.boot == latest(told, one.hostname)]
    # After a good-bye, an older incarnation may be a node whose disk was set back: see below.
    leaving = {one.hostname for one in told if one.kind == "offline"}
    told = [one for one in told if one.hostname not in leaving or one.boot == latest(told, one.hostname)]
    shuffled = rng.sample(told, len(told))

    assert seen(after(told)) == seen(after(shuffled)) == expected(told)


def latest(told: list[Said], hostname: str) -> int:
    return max(one.boot for one in told if one.hostname == hostname)


@examples(200)
@given(deliveries, st.data())
def test_what_is_delivered_twice_in_a_row_does_nothing(told: list[Said], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(told) - 1))
    others = [PeerSummary(f"{one.hostname}.{one.boot}", one.incarnation) for one in told[:index]]
    members = Membership("me.1", 2.0)
    for one in told[: index + 1]:
        deliver(members, one, others)
    before, view = seen(members), members.view()
    members.take_changes()

    deliver(members, told[index], others)

    assert (seen(members), members.view(), members.take_changes()) == (before, view, [])


@examples(200)
@given(deliveries, deliveries)
def test_an_alive_node_is_never_replaced_by_its_past(earlier: list[Said], later: list[Said]) -> None:
    members = after(earlier)
    for one in later:
        was = members.members.get(one.hostname)
        boot, state = (boot_count(was.incarnation), was.state) if was is not None else (0, LEFT)
        deliver(members, one, [])
        now = members.members[one.hostname]
        if state == ALIVE:
            assert boot_count(now.incarnation) >= boot, "last words of an earlier life displaced it"
        if was is now and state == LEFT:
            assert now.state == LEFT, "a good-bye is final"


@examples(200)
@given(deliveries)
def test_changes_tell_what_the_view_is(told: list[Said]) -> None:
    """The reported changes alone lead to the same members as the whole table."""
    members = after(told)
    present: set[tuple[str, str]] = set()
    for what, member in members.take_changes():
        (present.add if what == "join" else present.discard)((member.name, member.incarnation))

    alive = {(m.name, m.incarnation) for m in members.members.values() if m.state == ALIVE}
    assert present == alive
    assert set(members.view()) == {name for name, _ in alive} | {"me.1"}
