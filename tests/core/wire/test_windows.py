"""The idempotent receiver: it accepts each message once. It accepts late facts, and refuses late messages that act."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
from hypothesis import given, settings, strategies as st

from coordd.core.wire import windows
from coordd.core.wire.events import (
    PROTOCOL_MAJOR,
    AnyEvent,
    Candidacy,
    ControlCancel,
    ControlRevoke,
    Packet,
    Task,
    TaskStarted,
    TaskSucceeded,
    WorkerElect,
    WorkerElectAck,
    WorkerHeartbeat,
    WorkerHello,
    WorkerHelloReply,
    event_type,
)
from coordd.core.wire.windows import (
    ANSWERED_S,
    ANSWERS_MAX,
    CLOCK_SKEW_MAX_S,
    EXPIRY_S,
    FORGOTTEN_S,
    REACH,
    SENDERS_MAX,
    Admission,
    Windows,
)

WALL = 1_738_137_600.0
MONO = 500.0


def heartbeat(at: float = WALL) -> AnyEvent:
    return WorkerHeartbeat(clock=1, timestamp=at)


def fact(at: float = WALL) -> TaskSucceeded:
    return TaskSucceeded(uuid="u", run="sales#1", timestamp=at)


def elect(at: float = WALL) -> WorkerElect:
    return WorkerElect(id="sales#1/0", topic="spark", candidacy=Candidacy(0, 1, "edge.1"), clock=1, timestamp=at)


def ack(at: float = WALL) -> WorkerElectAck:
    return WorkerElectAck(id="sales#1/0", candidacy=Candidacy(0, 1, "edge.1"), timestamp=at)


def cancel(at: float = WALL) -> ControlCancel:
    return ControlCancel(run="sales#1", timestamp=at)


def revoke(at: float = WALL) -> ControlRevoke:
    return ControlRevoke(run="sales#1", timestamp=at)


ACTING = (elect, ack, cancel, revoke)


def packet(seq: int, *said: AnyEvent, hostname: str = "edge", incarnation: str = "1-aa") -> Packet:
    return Packet(PROTOCOL_MAJOR, "prod", hostname, 1, incarnation, seq, 0, list(said))


class Listener:
    """Windows with its own clock."""

    def __init__(self, *, started: bool = False) -> None:
        self.windows = Windows(MONO, WALL) if started else Windows()
        self.after_s = 0.0

    def hear(self, seq: int, *said: AnyEvent, **sender: str) -> Admission:
        return self.windows.admit(packet(seq, *said, **sender), MONO + self.after_s, WALL + self.after_s)


def test_what_is_new_is_kept_as_it_is() -> None:
    listener = Listener()
    said = packet(0, heartbeat(), elect(), fact(), cancel())
    admission = listener.windows.admit(said, MONO, WALL)
    assert admission == Admission(said.events)
    assert admission.fresh
    assert admission.events is said.events


@pytest.mark.parametrize("event", [heartbeat, fact, *ACTING])
def test_the_same_message_counts_once(event: Any) -> None:
    listener = Listener()
    assert listener.hear(5, event(), event()).events
    again = listener.hear(5, event(), event())
    assert (again.events, again.fresh, again.refused) == ([], False, {"duplicate": 2})
    assert "heard before" in again.notice
    assert listener.windows.refused["duplicate"] == 1


def test_neighbours_that_overtake_each_other_all_count_once() -> None:
    listener = Listener()
    for seq in (10, 12, 11, 9, 14, 13):
        assert listener.hear(seq, elect()).events, seq
    for seq in range(9, 15):
        assert not listener.hear(seq, elect()).events, seq


@given(st.lists(st.integers(0, 3 * REACH), max_size=60))
@settings(max_examples=200)
def test_within_reach_a_number_is_new_exactly_once(order: list[int]) -> None:
    listener = Listener()
    heard: set[int] = set()
    highest = -1
    for seq in order:
        highest = max(seq, highest)
        admission = listener.hear(seq, elect())
        new = seq not in heard and highest - seq < REACH
        assert bool(admission.events) == new
        heard.add(seq)


@given(st.lists(st.integers(0, 5 * REACH), max_size=60))
def test_an_election_never_counts_twice_whatever_the_order(order: list[int]) -> None:
    listener = Listener()
    counted = [seq for seq in order if listener.hear(seq, elect()).events]
    assert len(counted) == len(set(counted))


def test_a_replayed_backlog_comes_late_and_is_kept_and_shows_no_life() -> None:
    listener = Listener()
    listener.hear(0, heartbeat())
    listener.hear(100_000, heartbeat())
    for live, seq in enumerate(range(40, 40 + 300 * 7, 7)):
        late = listener.hear(seq, fact(WALL - 7200))
        assert (len(late.events), late.fresh, late.refused, late.notice) == (1, False, {}, ""), seq
        assert listener.hear(100_001 + live, elect()).events, "what is new is not held up"
    assert listener.windows.late == 300
    for seq in range(40, 40 + 300 * 7, 7):
        assert listener.hear(seq, fact(WALL - 7200)).refused == {"duplicate": 1}, seq


def test_a_backlog_sent_again_from_its_start_is_still_taken() -> None:
    listener = Listener()
    listener.hear(10 * REACH, heartbeat())
    assert listener.hear(5 * REACH, fact()).events
    assert listener.hear(3, fact()).events, "further back than both windows reach"
    assert not listener.hear(3, fact()).events
    assert listener.hear(4, fact()).events


@pytest.mark.parametrize("event", ACTING)
def test_what_acts_does_not_come_late(event: Any) -> None:
    listener = Listener()
    listener.hear(2 * REACH, heartbeat())
    mixed = listener.hear(REACH, event(), fact(), heartbeat())
    assert ([type(kept) for kept in mixed.events], mixed.fresh) == ([TaskSucceeded], False)
    assert mixed.refused == {"late": 1, "superseded": 1}
    assert listener.hear(REACH + 1, event()).events, "one number later it is within reach"


def test_what_a_node_said_of_itself_is_overtaken() -> None:
    listener = Listener()
    listener.hear(2 * REACH, heartbeat())
    old = listener.hear(7, heartbeat())
    assert (old.events, old.fresh, old.refused) == ([], False, {"superseded": 1})


@pytest.mark.parametrize("event", ACTING)
@pytest.mark.parametrize(
    ("age_s", "kept"),
    [
        (0.0, True),
        (EXPIRY_S + CLOCK_SKEW_MAX_S, True),
        (EXPIRY_S + CLOCK_SKEW_MAX_S + 0.1, False),
        (-CLOCK_SKEW_MAX_S, True),
        (-CLOCK_SKEW_MAX_S - 0.1, False),
        (WALL, False),
        (math.nan, False),
        (math.inf, False),
        (-math.inf, False),
    ],
)
def test_what_acts_expires(event: Any, age_s: float, kept: bool) -> None:
    listener = Listener()
    admission = listener.hear(1, fact(WALL - age_s), event(WALL - age_s))
    assert len(admission.events) == 1 + kept
    assert admission.refused == ({} if kept else {"expired": 1})
    assert bool(admission.notice) != kept


@pytest.mark.parametrize("skew_s", [-86400.0, 86400.0])
def test_a_node_whose_clock_is_off_is_still_a_member(skew_s: float) -> None:
    listener = Listener(started=True)
    told = listener.hear(1, heartbeat(WALL + skew_s), elect(WALL + skew_s))
    assert [type(kept) for kept in told.events] == [WorkerHeartbeat]
    assert told.fresh
    assert "edge.1" in told.notice
    assert "86400.0 s old" in told.notice
    assert "clocks of the two nodes are apart" in told.notice


DAY_S = 86400.0
# The logical clock at the restart. Every message that this node had sent or heard before is below this value.
MARK = 70_000


def test_an_old_heartbeat_after_a_restart_brings_nobody_to_life() -> None:
    restarted = Windows(MONO, WALL, MARK)
    told = restarted.admit(packet(900, WorkerHeartbeat(clock=MARK - 9, timestamp=WALL - DAY_S)), MONO, WALL)
    assert (told.events, told.fresh, told.refused) == ([], False, {"old": 1})
    assert "does not show that it is news" in told.notice
    hundreds_behind = packet(400, WorkerHeartbeat(clock=MARK - 800, timestamp=WALL - DAY_S - 600))
    assert not restarted.admit(hundreds_behind, MONO, WALL).events
    fact_of_then = packet(399, TaskSucceeded(uuid="u", run="sales#1", clock=MARK - 801, timestamp=WALL - DAY_S))
    told = restarted.admit(fact_of_then, MONO, WALL)
    assert (len(told.events), told.fresh) == (1, False)


def test_what_a_sender_has_overtaken_itself_is_old_also_when_nobody_had_heard_it() -> None:
    listener = Listener(started=True)
    assert listener.hear(900, WorkerHeartbeat(clock=5000, timestamp=WALL)).fresh
    assert listener.hear(899, WorkerHeartbeat(clock=4999, timestamp=WALL - 2)).fresh, "overtaken on its way"
    assert not listener.hear(400, WorkerHeartbeat(clock=4000, timestamp=WALL - DAY_S)).events


@pytest.mark.parametrize("skew_s", [-86400.0, 86400.0])
def test_an_honest_node_whose_clock_is_off_is_heard_once_it_has_heard_us(skew_s: float) -> None:
    restarted = Windows(MONO, WALL, MARK)
    hello = restarted.admit(packet(0, WorkerHello(clock=1, timestamp=WALL + skew_s)), MONO, WALL)
    assert (len(hello.events), hello.fresh) == (1, skew_s > 0), "answered, which is how it hears"
    for seq in (1, 2, 3):
        said = WorkerHeartbeat(clock=MARK + 1 + seq, timestamp=WALL + skew_s)
        assert restarted.admit(packet(seq, said), MONO, WALL).fresh


def test_what_was_said_before_a_restart_does_not_act_again() -> None:
    recorded = packet(3, cancel(WALL - 1), elect(WALL - 1), fact(WALL - 1))
    listening = Windows(MONO - 100, WALL - 100)
    assert len(listening.admit(recorded, MONO - 0.5, WALL - 0.5).events) == 3
    restarted = Windows(MONO, WALL)
    again = restarted.admit(recorded, MONO + 1, WALL + 1)
    assert [type(kept) for kept in again.events] == [TaskSucceeded]
    assert again.refused == {"forgotten": 2}
    assert len(restarted.admit(packet(4, cancel(WALL + 1)), MONO + 1, WALL + 1).events) == 1


def test_a_clock_that_was_set_back_costs_elections_for_a_while_only() -> None:
    restarted = Windows(MONO, WALL)
    back = WALL - 3600
    assert not restarted.admit(packet(1, elect(back)), MONO + 1, back).events
    assert not restarted.admit(packet(2, elect(back)), MONO + FORGOTTEN_S - 1, back).events
    assert restarted.admit(packet(3, elect(back)), MONO + FORGOTTEN_S, back).events


@pytest.mark.parametrize("event", ACTING)
def test_elections_count_soon_after_a_clock_that_was_ahead_at_the_start_is_right(event: Any) -> None:
    restarted = Windows(MONO, WALL + 60, MARK)
    said = event(WALL + 2)
    said.clock = MARK + 1
    told = restarted.admit(packet(1, said), MONO + 2, WALL + 2)
    assert (len(told.events), told.fresh, told.refused) == (1, True, {}), "it was said after the start"
    assert restarted.admit(packet(1, said), MONO + 2, WALL + 2).refused == {"duplicate": 1}


@pytest.mark.parametrize(
    ("mark", "clock", "at", "why"),
    [
        (MARK, MARK, WALL + 2, "it may have been heard before the restart"),
        (MARK, MARK + 1, WALL - 1, "it was said before the start"),
        (0, MARK + 1, WALL + 2, "this node has lost its state"),
    ],
)
def test_a_clock_that_was_ahead_at_the_start_lets_no_old_election_act(
    mark: int, clock: int, at: float, why: str
) -> None:
    restarted = Windows(MONO, WALL + 60, mark)
    said = elect(at)
    said.clock = clock
    told = restarted.admit(packet(1, said), MONO + 2, WALL + 2)
    assert (told.events, told.refused) == ([], {"forgotten": 1}), why


def reply(clock: int, to: str = "edge-2.7", at: float = WALL + 1) -> WorkerHelloReply:
    return WorkerHelloReply(to=to, clock=clock, timestamp=at)


class NewNode:
    """It has no mark. Its clock was a minute ahead at its start, and is right now."""

    def __init__(self) -> None:
        self.windows = Windows(MONO, WALL + 60, 0, "edge-2.7")
        self.seq = 0

    def told(self, answer: WorkerHelloReply, of: str = "edge") -> None:
        self.seq += 1
        self.windows.admit(packet(self.seq, answer, hostname=of), MONO + 1, WALL + 61)

    def hears(self, clock: int, at: float = WALL + 2, after_s: float = ANSWERED_S) -> bool:
        said = elect(at)
        said.clock = clock
        self.seq += 1
        return bool(
            self.windows.admit(packet(self.seq, said, hostname="edge-3"), MONO + after_s, WALL + after_s).events
        )


def test_answers_to_its_hello_show_a_node_without_a_mark_what_it_cannot_have_heard() -> None:
    new = NewNode()
    new.told(reply(900, to="edge-9.7"))
    assert not new.hears(1001), "nobody has answered this node"
    new.told(reply(2000))
    assert not new.hears(2000), "it may have been heard before the start"
    assert not new.hears(2001, after_s=ANSWERED_S - 0.5), "others may have heard more, and answer in a moment"
    assert new.hears(2001), "it was said after an answer"
    assert not new.hears(2002, at=WALL - 1), "it was said before the start"
    new.told(reply(3000), of="edge-4")
    assert not new.hears(2500), "another one had heard more"
    new.told(reply(1500), of="edge-4")
    assert not new.hears(2501), "an older answer proves no less"
    assert new.hears(3001)


def test_an_answer_to_an_earlier_life_shows_nothing() -> None:
    """In a container, the process has the same pid in each life."""
    new = NewNode()
    new.told(reply(50, at=WALL - 1))
    assert not new.hears(60)
    new.told(reply(70), of="edge-4")
    assert not new.hears(65)
    assert new.hears(71)


def test_answers_are_bounded() -> None:
    new = NewNode()
    for number in range(ANSWERS_MAX):
        new.told(reply(100), of=f"n{number}")
    new.told(reply(9000), of="one-more")
    assert new.hears(101)


def test_answers_show_nothing_about_a_sender_that_was_forgotten_since() -> None:
    new = Windows(MONO - 50, WALL + 10, 0, "edge-2.7")
    new.admit(packet(1, reply(10)), MONO - 49, WALL + 11)
    for number in range(SENDERS_MAX):
        new.admit(packet(1, heartbeat(), hostname=f"n{number}"), MONO, WALL + 60)
    new.admit(packet(1, reply(20)), MONO + 1, WALL + 61)
    said = elect(WALL + 1.5)
    said.clock = 30
    assert not new.admit(packet(2, said), MONO + 6, WALL + 6).events


@given(
    ahead_s=st.integers(-120, 120),
    back_s=st.integers(0, 240),
    said_s=st.integers(-60, 0),
    skew_s=st.integers(-60, 60),
    again_s=st.integers(0, 100),
    stamp=st.integers(0, MARK),
)
def test_what_was_heard_before_a_restart_acts_again_only_by_a_sender_whose_clock_is_ahead(
    ahead_s: int, back_s: int, said_s: int, skew_s: int, again_s: int, stamp: int
) -> None:
    """It was heard before the restart, so its stamp is not above the mark. The receiver's clock is set back since."""
    restarted = Windows(MONO, WALL + ahead_s, MARK)
    replayed = elect(WALL + said_s + skew_s)
    replayed.clock = stamp
    told = restarted.admit(packet(1, replayed), MONO + again_s, WALL + ahead_s - back_s + again_s)
    assert not told.events or skew_s + said_s >= ahead_s or again_s >= FORGOTTEN_S


def test_who_was_forgotten_for_others_proves_nothing_by_a_stamp() -> None:
    restarted = Windows(MONO - 200, WALL - 140, MARK)  # its clock is ahead by 60 s, and the sender's by 1 s
    said = elect(WALL + 0.5)
    said.clock = MARK + 5
    assert restarted.admit(packet(1, said, hostname="first"), MONO - 0.5, WALL + 59.5).events
    for number in range(SENDERS_MAX):
        restarted.admit(packet(1, heartbeat(), hostname=f"n{number}"), MONO, WALL + 60)
    assert restarted.admit(packet(2, heartbeat(), hostname="first"), MONO, WALL + 60).events
    again = restarted.admit(packet(1, said, hostname="first"), MONO + 2, WALL + 2)
    assert (again.events, again.refused) == ([], {"forgotten": 1})


def test_senders_are_bounded_and_a_forgotten_one_cannot_act_with_what_was_recorded() -> None:
    listener = Listener()
    assert listener.hear(1, cancel(), hostname="first").events
    listener.after_s = 1.0
    for number in range(SENDERS_MAX):
        listener.hear(1, heartbeat(), hostname=f"n{number}")
    assert len(listener.windows._windows) == SENDERS_MAX
    again = listener.hear(1, cancel(), hostname="first")
    assert (again.events, again.refused) == ([], {"forgotten": 1})
    listener.after_s = 2.0
    assert listener.hear(2, cancel(WALL + 2), hostname="first").events


def test_who_speaks_is_not_forgotten() -> None:
    listener = Listener()
    listener.hear(1, elect(), hostname="first")
    for number in range(SENDERS_MAX + 10):
        listener.hear(1, heartbeat(), hostname=f"n{number}")
        listener.hear(2 + number, heartbeat(), hostname="first")
    assert listener.hear(1, elect(), hostname="first").refused == {"duplicate": 1}


def test_incarnations_count_apart() -> None:
    listener = Listener()
    assert listener.hear(5, elect()).events
    assert listener.hear(5, elect(), incarnation="2-bb").events
    assert listener.hear(5, elect(), hostname="other").events
    assert not listener.hear(5, elect()).events


def test_a_flood_is_told_of_at_powers_of_two() -> None:
    listener = Listener()
    listener.hear(1, elect())
    told = [number for number in range(1, 101) if listener.hear(1, elect()).notice]
    assert told == [1, 2, 4, 8, 16, 32, 64]
    assert listener.windows.refused == {
        "duplicate": 100,
        "superseded": 0,
        "late": 0,
        "expired": 0,
        "forgotten": 0,
        "old": 0,
    }


@pytest.mark.parametrize("seq", [-1, -(2**70), 2**70])
def test_absurd_numbers_do_no_harm_to_others(seq: int) -> None:
    listener = Listener()
    listener.hear(seq, heartbeat(), hostname="mad")
    listener.hear(3, heartbeat(), hostname="mad")
    listener.hear(seq, heartbeat(), hostname="mad")
    window = listener.windows._windows["mad", "1-aa"]
    assert window.mask.bit_length() <= REACH
    assert window.late_mask.bit_length() <= REACH
    assert listener.hear(3, elect()).events


def test_an_empty_packet_is_no_event() -> None:
    listener = Listener()
    assert listener.hear(1) == Admission([])
    again = listener.hear(1)
    assert (again.events, again.fresh, again.refused) == ([], False, {})


def test_every_event_has_its_place() -> None:
    """An event is a fact, or a statement of a node about itself, or a command. The author
    of a new type decides that here.
    """
    kinds: dict[str, set[str]] = {"fact": set(), "acts": set(), "itself": set()}
    for kind in get_args(AnyEvent):
        place = "fact" if issubclass(kind, Task) else "acts" if kind in windows.ACTS else "itself"
        kinds[place].add(str(kind.__struct_config__.tag))
    assert kinds["acts"] == {"worker-elect", "worker-elect-ack", "control-cancel", "control-revoke", "control-clear"}
    assert all(word.startswith("task-") for word in kinds["fact"])
    assert all(word.startswith(("worker-", "peer-")) for word in kinds["itself"])
    assert event_type(TaskStarted(uuid="u")) in kinds["fact"]


@given(st.data())
@settings(max_examples=100)
def test_a_replay_of_a_whole_recording_changes_nothing(data: st.DataObject) -> None:
    """The attacker has recorded every message, and may send each one again, in any order and at any time."""
    listener = Listener(started=True)
    recording = []
    seq = 0
    for _ in range(data.draw(st.integers(1, 30))):
        listener.after_s += data.draw(st.floats(0, 20))
        at = WALL + listener.after_s
        said = packet(
            seq, *[make(at) for make in data.draw(st.lists(st.sampled_from((heartbeat, *ACTING)), min_size=1))]
        )
        assert listener.windows.admit(said, MONO + listener.after_s, at).events == said.events
        recording.append(said)
        seq += data.draw(st.integers(1, REACH))
    for said in data.draw(st.lists(st.sampled_from(recording), max_size=40)):
        listener.after_s += data.draw(st.floats(0, 20))
        again = listener.windows.admit(said, MONO + listener.after_s, WALL + listener.after_s)
        assert (again.events, again.fresh) == ([], False)
