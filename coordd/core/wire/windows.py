"""The idempotent receiver: it accepts each message once, and no election or command that is too old.

Every packet carries the number (``seq``) of its first event, counted per incarnation of its sender. Of each sender a
window is kept: the highest number heard, and which of the REACH numbers below it. So a packet is *new* (in the
window or above it, and not heard), a *duplicate* (heard), or *late* (below the window: it may have been heard long
ago). A second window follows the late ones, which come in order when a peer sends what it had to keep back.

    events                        new                  late                      duplicate
    task-*                        kept                 kept, no sign of life     refused
    worker-* except elections     kept                 refused: superseded       refused
    worker-elect(-ack), control-* kept unless expired  refused                   refused

Facts about runs may come late: merging them twice changes nothing. What a node says of itself is overtaken by what it
has said since. Elections and commands act, so they expire: EXPIRY_S after their ``timestamp``. That is the sender's
wall clock, so CLOCK_SKEW_MAX_S is tolerated in both directions. The message has no field for it: every event has a
time, which the MAC protects, and a sender must not extend the life of its own commands. A node whose clock is off by
more than that is still a member (liveness is never judged by timestamps), but its elections are decided at their
timeout, and ``notice`` says why.

Forgotten messages (after a restart, or of a sender beyond SENDERS_MAX) could be replayed as new. So elections and
commands must also be stamped after the moment of forgetting, until anything older has expired anyway. That moment is
read from the wall clock at the start. If that clock was ahead and is set back, everybody seems to speak of the time
before. Then a message counts too if it was said after the start by the wall clock as it is now *and* its logical stamp
is above the mark that this receiver started from: what was heard before the restart is below that mark. A receiver that
starts without a mark (a new node, or one that lost its state) takes the highest stamp of the answers to its hellos
instead, once they have had time to come: who answers has heard what was said before. What members say after they have
heard the receiver speak again is above it.

A heartbeat starts nothing, but an old one must not make a dead node look alive. A node's message about itself is
refused if it is old by the two wall clocks (FORGOTTEN_S) *and* its logical stamp does not prove that it is new: a new
stamp is above every earlier stamp of its sender here, and above the mark that this receiver started from. A wall clock
alone never causes a refusal. An honest node with a wrong clock stamps above the mark as soon as it has heard this
receiver, directly or through others; its hello is answered, so it does hear. One case is open: a message that a node
sent while this one was down, and that this one never received. It counts once, until the silence is noticed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from coordd.core.wire.events import (
    AnyEvent,
    ControlCancel,
    ControlClear,
    ControlRevoke,
    Packet,
    Task,
    WorkerElect,
    WorkerElectAck,
    WorkerHello,
    WorkerHelloReply,
)

# How many numbers below the highest are remembered; a packet of the largest size takes about 500. 1 KiB per sender.
REACH = 8192

# How many incarnations are remembered: enough for all members, and for those that restarted.
SENDERS_MAX = 4096

# How long (seconds) an election or a command may travel; later it is worthless, because the ledger has the truth.
EXPIRY_S = 30.0

# How far (seconds) the clocks of two nodes may differ for that.
CLOCK_SKEW_MAX_S = 30.0

# After this time (seconds) no earlier message can still be valid.
FORGOTTEN_S = EXPIRY_S + 2 * CLOCK_SKEW_MAX_S

# By then (seconds after the start) those that answer a hello have answered; and of how many the answers are kept.
ANSWERED_S = 5.0
ANSWERS_MAX = 64

ACTS = (WorkerElect, WorkerElectAck, ControlCancel, ControlClear, ControlRevoke)

DUPLICATE = "duplicate"
SUPERSEDED = "superseded"
LATE = "late"
EXPIRED = "expired"
FORGOTTEN = "forgotten"
OLD = "old"
REFUSED = {
    DUPLICATE: "it was heard before",
    SUPERSEDED: "its sender has said newer things since",
    LATE: "it is older than what is remembered of its sender",
    EXPIRED: f"it is older than {EXPIRY_S:g} s by its sender's clock, or the clocks of the two nodes are apart",
    FORGOTTEN: "it was said before this node began to remember",
    OLD: f"it is older than {FORGOTTEN_S:g} s by the two clocks, and its stamp does not show that it is news",
}

_FULL = (1 << REACH) - 1


class Admission(NamedTuple):
    """The accepted part of a packet.

    events: the events to process, in order; without any, the packet must be ignored. fresh: the packet proves that its
    sender lives; False for late and old facts, and for an old hello (which is answered). refused: how many events were
    refused, by reason (a word of REFUSED). notice: a sentence for the log, or "" (each reason is logged at its 1st,
    2nd, 4th, 8th … packet).
    """

    events: list[AnyEvent]
    fresh: bool = True
    refused: Mapping[str, int] = MappingProxyType({})
    notice: str = ""


class _Memory:
    """The moment from which a receiver remembers what it has heard."""

    __slots__ = ("_answers", "_heard_to", "forgotten_until", "forgotten_wall")

    def __init__(self, wall: float, until_mono: float, heard_to: float) -> None:
        self.forgotten_wall = wall
        self.forgotten_until = until_mono  # no message from before can be valid after this time
        self._heard_to = heard_to  # no message with a stamp above this was heard and forgotten
        self._answers: dict[str, tuple[float, int]] = {}  # sender -> when it answered, by its clock, and the stamp

    def is_forgotten(self, event: AnyEvent, now_mono: float, now_wall: float) -> bool:
        """True if the event may have been heard before this memory began."""
        if now_mono >= self.forgotten_until or event.timestamp >= self.forgotten_wall:
            return False
        age_s = now_mono - self.forgotten_until + FORGOTTEN_S
        begun_wall = now_wall - age_s  # by the wall clock as it is now
        if event.timestamp < begun_wall:
            return True
        heard_to = self._heard_to
        if self._answers and age_s >= ANSWERED_S:
            heard_to = max([stamp for at, stamp in self._answers.values() if at >= begun_wall], default=heard_to)
        return event.clock <= heard_to

    def answered(self, sender: str, event: WorkerHelloReply) -> None:
        """An answer to our hello."""
        if sender in self._answers or len(self._answers) < ANSWERS_MAX:
            _, known = self._answers.get(sender, (0.0, 0))
            self._answers[sender] = (event.timestamp, max(known, event.clock))


class _Window:
    """The numbers heard from one incarnation. Bit n of a mask stands for ``high - n``."""

    __slots__ = ("high", "late_high", "late_mask", "mask", "memory", "stamp")

    def __init__(self, high: int, stamp: int, memory: _Memory) -> None:
        self.high = high
        self.stamp = stamp  # an old message is new only above this stamp
        self.mask = 0
        self.late_high = -1
        self.late_mask = 0
        self.memory = memory

    def hear(self, seq: int) -> str:
        """Note a number: "" when it is new, LATE, or DUPLICATE."""
        behind = self.high - seq
        if behind < 0:
            self.mask = (self.mask << -behind | 1) & _FULL if behind > -REACH else 1
            self.high = seq
            return ""
        if behind < REACH:
            bit = 1 << behind
            if self.mask & bit:
                return DUPLICATE
            self.mask |= bit
            return ""
        return self._hear_late(seq)

    def _hear_late(self, seq: int) -> str:
        behind = self.late_high - seq
        if behind >= REACH:  # a second replay, from further back: it is followed from its start
            behind, self.late_mask = -REACH, 0
        if behind < 0:
            self.late_mask = (self.late_mask << -behind | 1) & _FULL if behind > -REACH else 1
            self.late_high = seq
            return LATE
        bit = 1 << behind
        if self.late_mask & bit:
            return DUPLICATE
        self.late_mask |= bit
        return LATE


class Windows:
    """The windows of all senders that one node hears."""

    def __init__(
        self, now_mono: float | None = None, now_wall: float = 0.0, clock_mark: int = 0, name: str = ""
    ) -> None:
        """The two clocks when this node begins to listen, the mark of its logical clock, and its full_hostname. Without
        them, it is as if it had always listened.
        """
        self._windows: dict[tuple[str, str], _Window] = {}  # the sender that was silent for longest comes first
        self._clock_mark = clock_mark
        self._name = name
        # A node that lost its state starts without a mark, and may have heard everything until others have answered it.
        until_mono = -math.inf if now_mono is None else now_mono + FORGOTTEN_S
        self._start = self._memory = _Memory(now_wall, until_mono, clock_mark or math.inf)
        self.refused = dict.fromkeys(REFUSED, 0)  # packets with a refusal, by reason
        self.late = 0  # late packets with facts

    def admit(self, packet: Packet, now_mono: float, now_wall: float) -> Admission:
        """Judge a packet, once: the next time it is a duplicate. ``now`` as in core.ready.Now."""
        sender = (packet.hostname, packet.incarnation)
        window = self._windows.pop(sender, None) or self._meet(packet.seq, now_mono, now_wall)
        self._windows[sender] = window
        heard = window.hear(packet.seq)
        oldest = now_wall - EXPIRY_S - CLOCK_SKEW_MAX_S
        newest = now_wall + CLOCK_SKEW_MAX_S
        shown = window.stamp
        if not self._clock_mark and not heard and now_mono < self._start.forgotten_until:
            self._answered(packet)
        if not heard:
            window.stamp = max([shown, *[event.clock for event in packet.events]])
            for event in packet.events:
                if isinstance(event, ACTS) and (
                    not oldest <= event.timestamp <= newest or window.memory.is_forgotten(event, now_mono, now_wall)
                ):
                    break
                if event.clock <= shown and event.timestamp < now_wall - FORGOTTEN_S:
                    break
            else:
                return Admission(packet.events)  # the usual case
        was_old = False
        kept: list[AnyEvent] = []
        refused: dict[str, int] = {}
        for event in packet.events:
            old = event.clock <= shown and event.timestamp < now_wall - FORGOTTEN_S
            was_old = was_old or old
            if heard == DUPLICATE:
                why = DUPLICATE
            elif isinstance(event, Task):
                why = ""
            elif not isinstance(event, ACTS):
                why = SUPERSEDED if heard else OLD if old and not isinstance(event, WorkerHello) else ""
            elif heard:
                why = LATE
            elif not oldest <= event.timestamp <= newest:
                why = EXPIRED
            else:
                why = FORGOTTEN if window.memory.is_forgotten(event, now_mono, now_wall) else ""
            if why:
                refused[why] = refused.get(why, 0) + 1
            else:
                kept.append(event)
        if heard == LATE and kept:
            self.late += 1
        fresh = bool(kept) and not heard and not was_old
        return Admission(kept, fresh, refused, self._notice(packet, refused, now_wall))

    def _meet(self, seq: int, now_mono: float, now_wall: float) -> _Window:
        """A sender that is unknown, or forgotten."""
        if len(self._windows) >= SENDERS_MAX:
            del self._windows[next(iter(self._windows))]
            # The forgotten sender may have said anything since the start.
            self._memory = _Memory(now_wall, now_mono + FORGOTTEN_S, math.inf)
        return _Window(seq, self._clock_mark, self._memory)

    def _answered(self, packet: Packet) -> None:
        for event in packet.events:
            if isinstance(event, WorkerHelloReply) and event.to == self._name:
                self._start.answered(packet.sender, event)

    def _notice(self, packet: Packet, refused: dict[str, int], now_wall: float) -> str:
        told = []
        for why, events in refused.items():
            count = self.refused[why] = self.refused[why] + 1
            if count & (count - 1) == 0:
                told.append(f"{events} events: {REFUSED[why]}")
        if not told:
            return ""
        age_s = now_wall - max([event.timestamp for event in packet.events])
        return f"message {packet.seq} of {packet.sender}, {age_s:.1f} s old by the two clocks: {'; '.join(told)}"
