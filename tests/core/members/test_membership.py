"""Membership: silence, good-bye messages, proof of death, restarts, and messages in any order."""

from __future__ import annotations

import pytest

from coordd.core.members import membership
from coordd.core.members.membership import (
    ALIVE,
    FORGET_AFTER_S,
    LEFT,
    LOST,
    LOST_AFTER,
    MOVES,
    SUSPECT,
    SUSPECT_AFTER,
    Member,
    Membership,
    boot_count,
)
from coordd.core.wire.events import PeerSummary, WorkerHeartbeat

INTERVAL_S = 2.0
FIRST, SECOND = "1-aaaa", "2-bbbb"


@pytest.fixture
def members() -> Membership:
    return Membership("me.1", INTERVAL_S)


def hear(members: Membership, incarnation: str = FIRST, *, now: float = 0.0, clock: int = 1, pid: int = 7) -> Member:
    member = members.hear("edge", pid, incarnation, clock, now)
    assert member is not None
    return member


def changes(members: Membership) -> list[tuple[str, str]]:
    return [(what, member.incarnation) for what, member in members.take_changes()]


def in_state(members: Membership, state: str) -> Member:
    """A member that has reached a state through real inputs."""
    member = hear(members)
    if state in (SUSPECT, LOST):
        members.sweep(INTERVAL_S * (SUSPECT_AFTER + 0.1))
    if state == LOST:
        members.sweep(INTERVAL_S * (LOST_AFTER + 0.1))
    if state == LEFT:
        members.offline(member, clock=5)
    assert member.state == state
    members.take_changes()
    return member


@pytest.mark.parametrize("state", [ALIVE, SUSPECT, LOST, LEFT])
@pytest.mark.parametrize("happened", ["heard", "speaks", "offline", "silent", "dead"])
def test_a_member_moves_as_the_table_says_and_no_other_way(members: Membership, state: str, happened: str) -> None:
    member = in_state(members, state)
    now = 100.0 if happened in ("silent", "dead") else 1.0
    if happened == "heard":
        hear(members, now=now)
    elif happened == "speaks":
        members.update(member, WorkerHeartbeat(clock=6, state="ready"))
    elif happened == "offline":
        members.offline(member, clock=5)
    elif happened == "silent":
        member.heard_at = now - INTERVAL_S * (SUSPECT_AFTER + 0.1)
        members.sweep(now)
    else:
        members.proof_of_death(member.name)
    expected = MOVES.get((state, happened), state)
    assert member.state == expected
    said = [what for what, _ in changes(members)]
    announced = {ALIVE: ["join"] if state in (LOST, LEFT) else [], LOST: ["lost"], LEFT: ["leave"]}
    assert said == ([] if expected == state else announced.get(expected, []))


def test_silence_makes_suspect_then_lost_on_our_own_clock(members: Membership) -> None:
    member = hear(members, now=100.0)
    assert members.next_at() == 100.0 + SUSPECT_AFTER * INTERVAL_S
    members.sweep(members.next_at())
    assert member.state == ALIVE  # still alive until the timeout has passed
    members.sweep(members.next_at() + 0.01)
    assert (member.state, members.view()) == (SUSPECT, ("edge.7", "me.1"))  # a suspect still takes part in elections
    assert members.next_at() == 100.0 + LOST_AFTER * INTERVAL_S
    members.sweep(members.next_at() + 0.01)
    assert (member.state, members.view()) == (LOST, ("me.1",))
    assert members.next_at() == float("inf")
    assert changes(members) == [("join", FIRST), ("lost", FIRST)]


def test_a_long_pause_of_our_own_goes_through_both_states_at_once(members: Membership) -> None:
    hear(members)
    members.sweep(1000.0)
    assert changes(members) == [("join", FIRST), ("lost", FIRST)]


def test_who_is_heard_again_is_back(members: Membership) -> None:
    member = in_state(members, LOST)
    hear(members, now=50.0)
    assert (member.state, member.heard_at, changes(members)) == (ALIVE, 50.0, [("join", FIRST)])
    assert members.count() == {ALIVE: 2, SUSPECT: 0, LOST: 0}


def test_the_last_words_after_a_good_bye_wake_nobody(members: Membership) -> None:
    member = in_state(members, LEFT)
    hear(members, now=1.0)
    assert (member.state, members.view()) == (LEFT, ("me.1",))


@pytest.mark.parametrize(("clock", "state"), [(4, "ready"), (5, "ready"), (6, "stopping")])
def test_what_was_said_before_a_good_bye_or_while_stopping_wakes_nobody(
    members: Membership, clock: int, state: str
) -> None:
    member = in_state(members, LEFT)  # with the stamp 5
    members.update(member, WorkerHeartbeat(clock=clock, state=state))
    assert (member.state, members.view()) == (LEFT, ("me.1",))


def test_a_restart_replaces_the_old_incarnation_whatever_comes_late(members: Membership) -> None:
    hear(members, FIRST)
    hear(members, SECOND, pid=8)
    assert changes(members) == [("join", FIRST), ("lost", FIRST), ("join", SECOND)]
    assert members.view() == ("edge.8", "me.1")
    assert members.hear("edge", 7, FIRST, 99, 1.0) is None  # this message was under way
    assert (changes(members), members.members["edge"].pid) == ([], 8)


def test_a_restart_after_a_good_bye_is_no_loss(members: Membership) -> None:
    members.offline(hear(members, FIRST), clock=5)
    hear(members, SECOND)
    assert changes(members) == [("join", FIRST), ("leave", FIRST), ("join", SECOND)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_messages_in_any_order_lead_to_the_same_member(members: Membership, order: tuple[int, ...]) -> None:
    heard = [(FIRST, 7, 5), (SECOND, 8, 9), (SECOND, 8, 3)]
    for index in order:
        incarnation, pid, clock = heard[index]
        members.hear("edge", pid, incarnation, clock, 1.0)
    member = members.members["edge"]
    assert (member.incarnation, member.pid, member.clock, member.state) == (SECOND, 8, 9, ALIVE)
    assert members.view() == ("edge.8", "me.1")


def test_death_is_proved_for_the_very_process_only(members: Membership) -> None:
    hear(members, SECOND, pid=8)
    assert not members.proof_of_death("edge.7")
    assert members.proof_of_death("edge.8")
    assert not members.proof_of_death("edge.8")
    assert members.count() == {ALIVE: 1, SUSPECT: 0, LOST: 1}


def test_members_that_are_gone_are_forgotten_in_the_end(members: Membership) -> None:
    in_state(members, LOST)
    members.forget(FORGET_AFTER_S)
    assert "edge" in members.members
    members.forget(FORGET_AFTER_S + 0.01)
    assert members.members == {}


def test_there_are_only_so_many_members(members: Membership, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "MEMBERS_MAX", 2)
    heard = [members.hear(f"edge-{n}", 1, FIRST, 1, 0.0) for n in range(3)]
    assert [member is not None for member in heard] == [True, True, False]
    assert members.hear("edge-0", 2, SECOND, 1, 0.0) is not None  # a known node has restarted


def test_a_heartbeat_is_taken_over(members: Membership) -> None:
    member = hear(members)
    said = WorkerHeartbeat(
        freq=2.0, active=3, loadavg=(1.0, 2.0, 3.0), state="ready", tags=("gpu",), jobs_digest="d", sw_ver="1.2"
    )
    members.update(member, said)
    assert (member.freq, member.active, member.loadavg, member.says) == (2.0, 3, (1.0, 2.0, 3.0), "ready")
    assert (member.tags, member.jobs_digest, member.sw_ver) == (("gpu",), "d", "1.2")


def test_who_speaks_to_all_more_rarely_is_given_more_time(members: Membership) -> None:
    member = hear(members)
    members.update(member, WorkerHeartbeat(freq=100.0))
    members.sweep(149.0)
    assert member.state == ALIVE
    members.sweep(151.0)
    assert member.state == SUSPECT
    members.update(member, WorkerHeartbeat(freq=1e300))
    assert members.promised_s(member) == membership.PROMISE_MAX_S


def test_heartbeats_to_all_become_rarer_as_members_come(members: Membership) -> None:
    for number in range(69):
        members.told([PeerSummary(f"edge-{number}.1", FIRST)], 0.0, vouched=False)
    assert (members.size, members.fanout_interval_s, members.large) == (70, INTERVAL_S, False)
    for number in range(69, 999):
        members.told([PeerSummary(f"edge-{number}.1", FIRST)], 0.0, vouched=False)
    assert (members.size, members.fanout_interval_s, members.large) == (1000, 400.0, True)


@pytest.mark.parametrize("vouched", [True, False])
def test_only_who_is_vouched_for_comes_back_by_hearsay(members: Membership, vouched: bool) -> None:
    member = in_state(members, LOST)
    members.told([PeerSummary("edge.7", FIRST)], 50.0, vouched=vouched)
    assert member.state == (ALIVE if vouched else LOST)
    assert changes(members) == ([("join", FIRST)] if vouched else [])
    members.told([PeerSummary("edge.8", SECOND)], 50.0, vouched=vouched)  # the node waits for the member's own messages
    assert members.members["edge"] is member


def test_hearsay_of_a_good_bye_wakes_nobody(members: Membership) -> None:
    member = in_state(members, LEFT)
    members.told([PeerSummary("edge.7", FIRST)], 1.0, vouched=True)
    assert (member.state, members.view()) == (LEFT, ("me.1",))


@pytest.mark.parametrize("name", ["me.1", "me.2", "edge", ".1", "", "edge.", "edge.x", "edge.-1", "edge." + "9" * 5000])
def test_hearsay_that_names_nobody_is_nothing(members: Membership, name: str) -> None:
    members.told([PeerSummary(name, FIRST), PeerSummary("e" * 300 + ".1", FIRST)], 0.0, vouched=True)
    assert (members.members, members.view()) == ({}, ("me.1",))


def test_who_hears_nobody_sees_itself_alone_until_somebody_speaks(members: Membership) -> None:
    hear(members)
    members.told([PeerSummary("other.1", FIRST)], 0.0, vouched=False)
    members.isolate(True)
    assert (members.view(), members.count()) == (("me.1",), {ALIVE: 1, SUSPECT: 0, LOST: 2})
    hear(members, now=1.0)
    assert (members.view(), members.count()[ALIVE]) == (("edge.7", "me.1", "other.1"), 3)


def test_an_incarnation_begins_with_its_boot_counter() -> None:
    assert boot_count("12-ab") == 12


@pytest.mark.parametrize("incarnation", ["", "ab", "-3", "-1-a", "\u00b2-a", "\u0663-a", "9" * 5000 + "-a"])
def test_an_incarnation_without_a_count_has_none(incarnation: str) -> None:
    assert boot_count(incarnation) == -1


@pytest.mark.parametrize("name", ["", "a\0", "a b", "a\n", "\u00e9dge", "x" * 65])
def test_nobody_can_have_a_name_that_no_node_may_have(members: Membership, name: str) -> None:
    assert members.hear(name, 7, FIRST, 1, 0.0) is None
    members.told([PeerSummary(f"{name}.7", FIRST)], 0.0, vouched=True)
    assert members.members == {}


def test_what_a_member_said_earlier_and_comes_later_is_not_believed() -> None:
    members = Membership("a.1", 2.0)
    member = members.hear("b", 2, "1-b", 0, 0.0)
    assert member is not None
    members.update(member, WorkerHeartbeat(clock=500, state="draining", active=3, tags=("new",), jobs_digest="new"))
    members.update(member, WorkerHeartbeat(clock=5, state="ready", active=0, tags=("old",), jobs_digest="old"))
    assert (member.says, member.active, member.tags, member.jobs_digest) == ("draining", 3, ("new",), "new")
    members.update(member, WorkerHeartbeat(clock=501, state="ready"))
    assert member.says == "ready"


def test_a_good_bye_is_not_taken_back_by_an_earlier_heartbeat() -> None:
    members = Membership("a.1", 2.0)
    member = members.hear("b", 2, "1-b", 0, 0.0)
    assert member is not None
    members.update(member, WorkerHeartbeat(clock=10, state="ready", active=1))
    members.offline(member, 20)
    members.update(member, WorkerHeartbeat(clock=9, state="ready", active=7))
    assert (member.state, member.active) == (LEFT, 1)
