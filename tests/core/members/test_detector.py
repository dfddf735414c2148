"""Membership of large clusters: whole core nodes in virtual time, with faults.

Most tests use a scale of one to ten: a tenth of the normal deliveries is allowed, so 40 nodes are a large cluster.
"""

from __future__ import annotations

from itertools import islice

import pytest
from support.crowd import LATENCY_S, SETTINGS, Crowd, Place

from coordd.core.members import membership
from coordd.core.members.heartbeat import WATCHERS, pages
from coordd.core.members.membership import ALIVE, LOST, SUSPECT
from coordd.core.wire import codec
from coordd.core.wire.events import MESSAGE_BYTES_MAX, Event, Packet, PeerSummary, WorkerSuspect, WorkerVouch

N = 40
SCALE = 10  # with this scale, nodes have watchers above 22 members; the benchmark measures 1,000 members at full size

INTERVAL_S = SETTINGS.heartbeat_interval_s
LOST_BY_ALL_S = 30.0


@pytest.fixture(autouse=True)
def scale(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "full_size" not in request.fixturenames:
        monkeypatch.setattr(membership, "FANOUT_DELIVERIES_S", membership.FANOUT_DELIVERIES_S / SCALE)


@pytest.fixture
def full_size() -> None:
    """Use the full size, without a scale."""


def crowd(count: int = N, **options: float) -> Crowd:
    """A cluster that has been running for a while."""
    made = Crowd(count, **options)  # type: ignore[arg-type]  # seed and loss
    made.run(10.0)
    assert made.all_alive() or options.get("loss")
    made.count()
    return made


def rate(made: Crowd, seconds: float) -> float:
    made.run(seconds)
    return sum(made.delivered.values()) / seconds


def said(made: Crowd, kind: type[Event]) -> int:
    return sum(isinstance(event, kind) for _, _, event in made.said)


@pytest.mark.usefixtures("full_size")
def test_a_small_cluster_speaks_to_all_and_writes_nobody() -> None:
    made = crowd(60)
    assert rate(made, 10.0) == 60 * 59 / INTERVAL_S
    assert set(made.published) == {"worker-heartbeat"}


@pytest.mark.parametrize("count", [75, 200])
@pytest.mark.usefixtures("full_size")
def test_the_traffic_of_a_large_cluster_stays_bounded(count: int) -> None:
    made = crowd(count)
    assert rate(made, 12.0) < 1.4 * membership.FANOUT_DELIVERIES_S
    assert made.delivered["worker-beat"] == count * WATCHERS * 12 / INTERVAL_S
    assert (said(made, WorkerSuspect), said(made, WorkerVouch), made.wrongly_lost()) == (0, 0, [])


def test_a_hung_node_is_lost_by_all_and_comes_back_when_it_thaws() -> None:
    made = crowd()
    hung = made.places[17]
    made.hang(hung)
    made.run(2.2 * INTERVAL_S)
    # SUSPECT for its watchers, ALIVE for the others
    assert {made.sees(place, hung).state for place in made.there()} == {ALIVE, SUSPECT}
    assert made.run(LOST_BY_ALL_S, lambda: made.lost_for_all([hung])) < LOST_BY_ALL_S
    assert said(made, WorkerSuspect) == 1  # one node tells all others
    made.thaw(hung, timers_first=True)
    assert made.run(10.0, made.all_alive) < 10.0


@pytest.mark.parametrize("kept", [0, 1])
def test_one_that_thaws_and_has_missed_nearly_everything_blames_nobody(kept: int) -> None:
    made = crowd()
    hung = made.places[17]
    made.hang(hung)
    made.run(LOST_BY_ALL_S)
    strangers = {*islice(hung.node.ctx.membership.ring.after(hung.node.ctx.full_hostname), 10)}
    hung.kept = [packet for packet in hung.kept if packet.sender in strangers][-kept:] if kept else []
    assert len(hung.kept) == kept
    made.count()
    made.thaw(hung, timers_first=not kept)
    assert made.run(10.0, made.all_alive) < 10.0
    made.run(4 * INTERVAL_S)
    assert (said(made, WorkerSuspect), made.wrongly_lost()) == (0, [])


def test_a_killed_node_is_told_to_all_by_who_has_the_proof() -> None:
    made = crowd()
    killed = made.places[3]
    made.kill(killed)
    assert made.run(LOST_BY_ALL_S, lambda: made.lost_for_all([killed])) <= 6 * INTERVAL_S
    assert said(made, WorkerSuspect) <= 2 * WATCHERS


def test_half_of_all_can_hang_at_once() -> None:
    made = crowd(80)
    half = made.places[::2]
    made.hang(*half)
    assert made.run(LOST_BY_ALL_S, lambda: made.lost_for_all(half)) < LOST_BY_ALL_S
    made.run(10 * INTERVAL_S)
    assert made.wrongly_lost() == []


def test_so_many_can_hang_that_the_rest_is_a_small_cluster_again() -> None:
    made = crowd()
    made.hang(*made.places[12:])
    assert made.run(60.0, lambda: made.lost_for_all(made.places[12:])) < 60.0
    made.run(4 * INTERVAL_S)
    made.count()
    made.run(10 * INTERVAL_S)
    assert made.wrongly_lost() == []
    assert set(made.published) == {"worker-heartbeat"}


def test_who_hears_nobody_is_alone_in_its_view_and_does_harm_to_none() -> None:
    made = crowd()
    deaf = made.places[5]
    deaf.deaf = True
    made.run(LOST_BY_ALL_S)
    assert deaf.node.ctx.membership.count() == {ALIVE: 1, SUSPECT: 0, LOST: N - 1}
    assert deaf.node.ctx.membership.view() == (deaf.node.ctx.full_hostname,)
    assert (said(made, WorkerSuspect), made.wrongly_lost()) == (0, [])
    assert all(made.sees(place, deaf).state == ALIVE for place in made.places if place is not deaf)
    deaf.deaf = False
    assert made.run(10.0, made.all_alive) < 10.0


def test_one_that_was_cut_off_is_brought_back_for_all_by_who_hears_it_first() -> None:
    made = crowd(80)
    alone = next(place for place in made.places if place.node.heartbeats.due_at() > made.now + 12 * INTERVAL_S)
    made.cut([alone])
    assert made.run(LOST_BY_ALL_S, lambda: sees_lost(made, alone)) < 10 * INTERVAL_S
    made.count()
    made.heal()
    made.run(2 * INTERVAL_S)
    assert made.all_alive()
    assert 1 <= said(made, WorkerVouch) <= WATCHERS


def sees_lost(made: Crowd, of: Place) -> bool:
    return all(made.sees(place, of).state == LOST for place in made.places if place is not of)


def test_the_last_one_of_all_finds_that_it_is_alone() -> None:
    made = crowd()
    made.hang(*made.places[1:])
    membership = made.places[0].node.ctx.membership
    assert made.run(LOST_BY_ALL_S, lambda: len(membership.view()) == 1) < LOST_BY_ALL_S


def test_one_liar_makes_nobody_lost() -> None:
    made = crowd()
    liar = made.places[0]
    accused = liar.node.ctx.membership.roster()[:10]
    for _ in range(10):
        made.forge(liar, WorkerSuspect(suspects=tuple(accused)))
        made.run(1.5 * LATENCY_S)  # its message is heard, and the answer is not sent yet
        assert made.wrongly_lost() == []
        made.run(INTERVAL_S)
        assert made.wrongly_lost() == []
    answers = [name for _, name, event in made.said if type(event).__name__ == "WorkerHeartbeat"]
    counts = [answers.count(one.name) for one in accused]
    assert min(counts) >= 8, "who is accused speaks"
    assert max(counts) <= 11, "once an interval, whatever is said"


def test_who_cannot_hear_that_it_is_suspected_is_vouched_for_by_who_hears_it() -> None:
    made = crowd(80)
    liar, *others = made.places
    deaf = next(
        place for place in others if place.node.heartbeats.due_at() > made.now + 8 * INTERVAL_S
    )  # it sends no heartbeat to all meanwhile
    deaf.deaf = True
    made.run(0.5)
    made.forge(liar, WorkerSuspect(suspects=(PeerSummary(deaf.node.ctx.full_hostname, deaf.node.ctx.incarnation),)))
    made.run(6 * INTERVAL_S)
    assert all(made.sees(place, deaf).state == ALIVE for place in made.places if place is not deaf)
    assert 1 <= said(made, WorkerVouch) <= WATCHERS


def test_a_suspicion_of_an_earlier_incarnation_is_no_news() -> None:
    made = crowd()
    one = made.places[9].node.ctx
    made.forge(made.places[1], WorkerSuspect(suspects=(PeerSummary(one.full_hostname, "0-before"),)))
    made.run(1.0)
    assert made.all_alive()


def test_a_partition_that_heals_brings_everybody_back() -> None:
    made = crowd()
    left, right = made.places[: N // 2], made.places[N // 2 :]
    made.cut(left, right)
    apart = made.run(90.0, lambda: all(len(p.node.ctx.membership.view()) == N // 2 for p in made.places), 1.0)
    assert apart < 90.0
    made.heal()
    assert made.run(60.0, made.all_alive, 1.0) < 60.0


def test_a_broker_that_was_away_leaves_the_members_known() -> None:
    made = crowd()
    made.cut(*[[place] for place in made.places])
    for place in made.places:
        made.do(place, place.node.bus_changed, False)
    made.run(60.0)
    assert {len(place.node.ctx.membership.view()) for place in made.places} == {1}
    made.heal()
    made.count()
    for place in made.places:
        made.do(place, place.node.bus_changed, True)
    assert made.run(10.0, made.all_alive) < 10.0
    assert sum(made.delivered.values()) < 20 * N  # not N² hello messages
    made.run(4 * INTERVAL_S)
    assert (said(made, WorkerSuspect), made.wrongly_lost()) == (0, [])


def test_messages_that_are_lost_now_and_then_cost_nobody_its_place() -> None:
    made = crowd(loss=0.02)
    made.run(60.0)
    assert made.wrongly_lost() == []


def test_a_newcomer_is_answered_by_a_few_and_knows_everybody() -> None:
    made = crowd()
    newcomer = made.boot(made.newcomer)
    made.join(newcomer)
    made.run(2.0)
    assert newcomer.node.ctx.state == "ready"
    assert made.all_alive()
    answered = {name for _, name, event in made.said if type(event).__name__ == "WorkerHelloReply"}
    assert len(answered) == WATCHERS
    made.run(4 * INTERVAL_S)
    assert (made.all_alive(), said(made, WorkerSuspect)) == (True, 0)


def test_a_newcomer_whose_answers_are_lost_asks_the_first_whom_it_hears() -> None:
    made = crowd(80)
    newcomer = made.boot(made.newcomer)
    newcomer.deaf = True
    made.join(newcomer)
    made.run(2.0)
    newcomer.deaf = False
    assert len(newcomer.node.ctx.membership.view()) == 1
    assert made.run(10.0, made.all_alive) < 10.0


def test_a_restarted_node_replaces_itself() -> None:
    made = crowd()
    old = made.places[4]
    made.kill(old)
    new = made.boot(made.newcomer, hostname=old.node.ctx.hostname, pid=4712)
    made.join(new)
    made.run(3.0)
    assert made.all_alive()
    assert {made.sees(place, new).pid for place in made.there() if place is not new} == {4712}


def test_lists_of_members_fit_into_messages() -> None:
    known = [PeerSummary("ü" * 200 + f"-{number}.1", "1-" + "a" * 16, "d" * 16, ("tag",)) for number in range(1000)]
    known.append(PeerSummary("mad.1", "1-b", "", ("x" * 5000,)))
    listed = list(pages(known))
    assert [one for page in listed for one in page] == known[:-1]
    for page in listed:
        packet = Packet(1, "default", "edge", 1, "1-a", 0, 0, [WorkerVouch(known=page)])
        assert len(codec.encode(packet)) < MESSAGE_BYTES_MAX


def test_what_nodes_tell_of_each_other_can_be_read_back() -> None:
    packet = Packet(
        1, "default", "edge", 1, "1-a", 0, 0, [WorkerSuspect(suspects=(PeerSummary("a.1", "1-b", "d", ("t",)),))]
    )
    assert codec.decode(codec.encode(packet)) == (packet, 0)
