"""The replay window, compared with a simple receiver that never forgets a message."""

from __future__ import annotations

from typing import ClassVar

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from support.search import examples

from coordd.core.wire import windows
from coordd.core.wire.events import PROTOCOL_MAJOR, AnyEvent, ControlCancel, Packet, TaskSucceeded, WorkerHeartbeat
from coordd.core.wire.windows import CLOCK_SKEW_MAX_S, EXPIRY_S, FORGOTTEN_S, REACH, Windows

WALL, MONO = 1_738_137_600.0, 500.0
SENDERS = ("edge-1", "edge-2", "edge-3")


class WindowMachine(RuleBasedStateMachine):
    """Senders that restart, a network that delays and repeats messages, and a receiver that also restarts.

    All clocks agree here. test_windows.py tests clocks that differ.
    """

    # one less than the number of senders, so one sender is forgotten now and then
    senders_max: ClassVar[int] = len(SENDERS) - 1

    def __init__(self) -> None:
        super().__init__()
        self.kept, windows.SENDERS_MAX = windows.SENDERS_MAX, self.senders_max
        self.after_s = 0.0
        self.windows = Windows(MONO, WALL)
        self.listening_since = 0.0
        self.clock = self.mark = 0  # the logical clock of all nodes, as if each node heard the others immediately
        self.shown: dict[tuple[str, str], int] = {}
        self.lives = dict.fromkeys(SENDERS, 1)
        self.next_seq: dict[tuple[str, int], int] = {}
        self.said: list[tuple[Packet, float]] = []  # every message that was ever sent, and when
        self.acted: set[tuple[str, str, int]] = set()
        self.heard: dict[tuple[str, str], set[int]] = {}  # the messages since the receiver began; never forgotten
        self.latest: list[tuple[str, str]] = []  # the sender that was heard last is at the end

    def teardown(self) -> None:
        windows.SENDERS_MAX = self.kept

    @rule(seconds=st.sampled_from((0.5, 10.0, 40.0, 70.0)))
    def time_passes(self, seconds: float) -> None:
        self.after_s += seconds

    @rule(hostname=st.sampled_from(SENDERS), skipped=st.sampled_from((0, 0, 1, 500, REACH - 1, REACH, 3 * REACH)))
    def somebody_speaks(self, hostname: str, skipped: int) -> None:
        """The message may arrive later, or never."""
        life = self.lives[hostname]
        seq = self.next_seq.get((hostname, life), 0) + skipped
        self.next_seq[hostname, life] = seq + 1
        at = WALL + self.after_s
        self.clock += 1
        said: list[AnyEvent] = [
            ControlCancel(run="sales#1", clock=self.clock, timestamp=at),
            TaskSucceeded(uuid="u", run="sales#1", clock=self.clock, timestamp=at),
            WorkerHeartbeat(clock=self.clock, timestamp=at),
        ]
        packet = Packet(PROTOCOL_MAJOR, "prod", hostname, 1, f"{life}-aa", seq, 0, said)
        self.said.append((packet, self.after_s))

    @rule(hostname=st.sampled_from(SENDERS))
    def a_sender_restarts(self, hostname: str) -> None:
        self.lives[hostname] += 1

    @rule()
    def the_receiver_restarts(self) -> None:
        self.after_s += 0.001
        self.mark = self.clock
        self.windows = Windows(MONO + self.after_s, WALL + self.after_s, self.mark)
        self.listening_since = self.after_s
        self.heard, self.latest, self.shown = {}, [], {}

    @precondition(lambda self: self.said)
    @rule(data=st.data())
    def something_arrives(self, data: st.DataObject) -> None:
        """Any message that was ever sent arrives: for the first time, or again."""
        self.after_s += 0.001
        index = data.draw(st.integers(0, min(len(self.said) - 1, 12)))
        packet, said_at = self.said[-1 - index]
        sender = (packet.hostname, packet.incarnation)
        forgotten = sender in self.heard and sender not in self.latest[-self.senders_max :]
        if forgotten:
            del self.heard[sender]
            self.shown.pop(sender, None)
        heard = self.heard.setdefault(sender, set())
        crowded = len({*self.latest, sender}) > self.senders_max  # messages older than now may not act any more
        fresh = packet.seq not in heard
        within_reach = fresh and packet.seq > max(heard, default=-1) - REACH
        age_s = self.after_s - said_at

        admission = self.windows.admit(packet, MONO + self.after_s, WALL + self.after_s)

        acts, fact, itself = (
            any(isinstance(e, kind) for e in admission.events)
            for kind in (ControlCancel, TaskSucceeded, WorkerHeartbeat)
        )
        key = (*sender, packet.seq)
        assert not (acts and key in self.acted), "a command acts twice"
        assert not acts or age_s <= EXPIRY_S + CLOCK_SKEW_MAX_S, "a command acts that has expired"
        if acts:
            self.acted.add(key)
        young = age_s <= EXPIRY_S + CLOCK_SKEW_MAX_S and said_at > self.listening_since
        if within_reach and young and not crowded:
            assert acts, "a fresh command is refused"
        # too old: the receiver cannot know any more whether it heard this message
        below = max(heard, default=-1) - packet.seq >= REACH
        assert fact or not fresh, "a fact counts, however late"
        assert not fact or fresh or below, "a fact counts twice"
        stamp = packet.events[0].clock
        old = age_s > FORGOTTEN_S and stamp <= max(self.mark, self.shown.get(sender, 0))
        assert itself == admission.fresh == (within_reach and not old)
        if within_reach:
            self.shown[sender] = max(stamp, self.shown.get(sender, 0))
        heard.add(packet.seq)
        if sender in self.latest:
            self.latest.remove(sender)
        self.latest.append(sender)


class RoomForAll(WindowMachine):
    """No sender is ever forgotten. So only the receiver's own restart excuses a refusal."""

    senders_max = 1000


WindowMachine.TestCase.settings = examples(60, steps=25)
RoomForAll.TestCase.settings = examples(60, steps=25)
TestSomeAreForgotten = WindowMachine.TestCase
TestAllAreRemembered = RoomForAll.TestCase
