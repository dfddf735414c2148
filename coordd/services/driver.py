"""The driver: the only caller of core.node.node.Node. It passes inputs to the node; ``core.perform`` performs the
outputs, with this shell.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import structlog
import trio

from coordd.core.breaker import Breaker
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.runner_requests import Registration
from coordd.core.members.outcomes import packet_of
from coordd.core.names import host_of
from coordd.core.node.node import Node
from coordd.core.perform import pump
from coordd.core.ready import Elected, Launch, LedgerRequest, Notice, Now, Reply
from coordd.core.wire import codec
from coordd.core.wire.events import (
    MESSAGE_BYTES_MAX,
    PROTOCOL_MAJOR,
    ControlCancel,
    ControlClear,
    ControlRevoke,
    Event,
    Packet,
    PeerAnswer,
    PeerAsk,
    Task,
    flatten,
)
from coordd.core.wire.windows import Windows
from coordd.errors import RemoteProtocolError, UnavailableError
from coordd.ports import Bus, Journal
from coordd.services import runlog
from coordd.services.breakers.own import OwnBreakers
from coordd.services.ledger import LedgerService, boottime
from coordd.services.metrics.unread import Unread
from coordd.services.outbox import KEEP_COMMANDS_S, KEEP_FACTS_S, Outbox

log = structlog.get_logger("core")

# Maximum number of recent events, kept for `events` and `watch`; a slower subscriber loses the oldest.
RECENT_MAX = 2000

# Maximum number of fire times that the planner skipped, kept for `why`.
PASSED_OVER_MAX = 1000

# Events of one tick are sent in one message, up to this size: room is left for the envelope.
PACKET_BYTES = MESSAGE_BYTES_MAX - 4096

# The usual number of events that fit; with more, the sizes are measured.
PACKET_EVENTS = 100

# A full disk still accepts bytes that fit into a file's last page: only a larger probe shows whether there is room
# again.
PROBE_BYTES = 8192

# Events that must arrive, and how long (seconds) each is kept while the bus is away. All others are sent only now: an
# election must not wait behind a backlog, and a late heartbeat would be wrong.
KEEP_S: dict[type[Event], float] = {
    Task: KEEP_FACTS_S,
    ControlRevoke: KEEP_COMMANDS_S,
    ControlCancel: KEEP_COMMANDS_S,
    ControlClear: KEEP_COMMANDS_S,
}
MUST_ARRIVE = tuple(KEEP_S)

# refused: events that were heard before, or are too old to act on. late: facts that their sender had to keep.
COUNTS = ("malformed", "unknown_types", "elections_decided", "journal_failures", "refused", "late", "too_large")


class Keeper(NamedTuple):
    """State that must outlive the process: the clock's mark, triggers that the ledger does not have yet, the
    definitions.

    Each raises UnavailableError when the disk refuses it.
    """

    save_mark: Callable[[int], None]
    keep_request: Callable[[Registration], None]
    forget_request: Callable[[str], None]
    save_pin: Callable[[str], None] = lambda _pin: None
    save_alarms: Callable[[dict[str, Any]], None] = lambda _kept: None
    keep_definitions: Callable[[Mapping[str, tuple[str, int, float]]], None] = lambda _: None


class Chain(Protocol):
    """Writes audit records. Both raise UnavailableError when the disk refuses one: then it waits."""

    def append(self, record: dict[str, Any]) -> str: ...
    def catch_up(self) -> None: ...


class Driver:
    """Runs one node."""

    def __init__(
        self,
        node: Node,
        *,
        bus: Bus,
        ledger: LedgerService,
        journal: Journal,
        keeper: Keeper,
        launch: Callable[[Launch], None],
        cancel: Callable[[str, str], None],
        windows: Windows | None = None,
    ) -> None:
        """``windows`` recognise repeated messages; a bus that neither repeats nor stores messages needs none."""
        self.node = node
        self.bus = bus
        self._ledger = ledger
        self._journal = journal
        self._keeper = keeper
        self._launch = launch
        self._cancel = cancel
        self._windows = windows
        self.own_breakers = OwnBreakers(ledger.breaker)
        self._unsaved_mark: int | None = None  # the disk refused it
        self._unsaved: dict[Callable[[Any], None], Any] = {}  # the same: how to save each, and the value
        self.chain: Chain | None = None
        self.on_peer: Callable[[str, PeerAsk | PeerAnswer], None] = lambda _sender, _event: None
        self.outbox: Outbox | None = None  # set by the composition root if the bus has a connection that can be lost
        self._seq = 0
        self._utcoffset = -time.timezone // 3600
        self._scope = trio.CancelScope()
        self._armed_at = math.nan  # the time of the present deadline
        self._replies: dict[int, Callable[[Reply], None]] = {}
        self._next_reply = 0
        self._gathers = False  # triggers of this moment wait for each other
        self.handlers: dict[str, Callable[[Elected], None]] = {}
        self.recent: deque[tuple[Packet, Event]] = deque(maxlen=RECENT_MAX)
        self.recent_total = 0
        self.unread = Unread("message.refused")
        self.news = trio.Event()
        self._news_total = 0
        self.fatal = trio.Event()
        self.fatal_reason = ""
        self.counts = dict.fromkeys(COUNTS, 0)
        self.on_state: Callable[[str], None] = lambda _: None
        self.lost_at: dict[str, float] = {}  # hostname -> CLOCK_BOOTTIME
        self._passed_over: deque[Notice] = deque(maxlen=PASSED_OVER_MAX)
        self.listeners: list[Callable[[Sequence[Event], Sequence[Notice]], None]] = []  # see ``log``

    # ---- inputs

    def now(self) -> Now:
        """Both clocks, now."""
        return Now(boottime(), time.time())

    def feed(self, call: Callable[..., Any], *args: Any) -> Any:
        """Pass one input to the node (a method with ``now`` as its last argument), then perform its output."""
        result = call(*args, self.now())
        self.pump()
        return result

    def deliver(self, data: bytes) -> None:
        """A message from the bus; b"" means that the burst is over."""
        if not data:
            self.pump()
            return
        try:
            packet, dropped = codec.decode(data)
        except RemoteProtocolError as exc:
            self.counts["malformed"] += 1
            self.unread.add(str(exc), data, self.counts["malformed"])
            return
        self.counts["unknown_types"] += dropped
        now = self.now()
        fresh = True
        if self._windows is not None:
            admission = self._windows.admit(packet, now.mono, now.wall)
            if admission.refused:
                self.counts["refused"] += sum(admission.refused.values())
                if admission.notice:
                    log.warning("message.not_taken", reason=admission.notice)
                if not admission.events:
                    return
                packet.events = admission.events
            fresh = admission.fresh
        for event in packet.events:
            if isinstance(event, (PeerAsk, PeerAnswer)):  # no news: for one caller alone
                if fresh and packet.cluster == self.node.settings.cluster:
                    self.on_peer(packet.sender, event)
            else:
                self.recent.append((packet, event))
                self.recent_total += 1
        if fresh:
            self.node.receive(packet, now)
            self._show_learned()
        else:
            self.counts["late"] += len(packet.events)
            self.node.receive_late(packet, now)

    def _show_learned(self) -> None:
        """Ends of runs that peers tell of, as events of the nodes on which they ended."""
        for outcome in self.node.outcomes.learned():
            packet = packet_of(outcome, self.node.settings.cluster)
            self.recent.append((packet, packet.events[0]))
            self.recent_total += 1

    def bus_changed(self, up: bool) -> None:
        """The bus was lost, or is up again."""
        if up:
            self.own_breakers.bus.restored(boottime())
        self.feed(self.node.bus_changed, up)  # the hello goes before waiting messages
        if self.outbox is not None:
            self.outbox.changed(up)

    @property
    def breakers(self) -> tuple[Breaker, ...]:
        """The breakers of this node, for people."""
        return self.own_breakers.all

    def look_at_bus(self) -> None:
        """Tell the bus's breaker whether it is connected."""
        self.own_breakers.look_at(self.bus, boottime())

    def ledger_answers(self, answers: Sequence[tuple[int, Answer | OpenAnswer, float]]) -> None:
        """Answers from the ledger service."""
        for request, answer, sent_at in answers:
            self.node.ledger_answered(request, answer, sent_at, self.now())
        self.pump()

    async def trigger(self, of: Registration) -> Reply:
        """Trigger a run and wait until it is recorded; the ledger service bounds the wait.

        The triggers of one moment leave the node together: in one message, and in few transactions of the ledger.
        """
        self._next_reply += 1
        done = trio.Event()
        box: list[Reply] = []

        def reply(said: Reply) -> None:
            box.append(said)
            done.set()

        self._replies[self._next_reply] = reply
        self.node.trigger(of, self._next_reply, self.now())
        if not self._gathers:
            self._gathers = True
            try:
                await trio.lowlevel.checkpoint()  # every other task that can go on now has its turn
            finally:
                self._gathers = False
                self.pump()
        await done.wait()
        return box[0]

    def wait_for_news(self) -> trio.Event:
        """Set with the next event that is sent or heard; subscribers share it."""
        if self.news.is_set():
            self.news = trio.Event()
        return self.news

    def journal_control(self, method: str, subject: str, uid: int, by: str, **more: Any) -> None:
        """Record a person's change, or a refused call; ``more`` are further fields."""
        record = {**self._record("control"), "method": method, "subject": subject, "uid": uid, "by": by, **more}
        chain = ""
        try:
            if self.chain is not None:
                chain = self.chain.append(record)
            else:
                self._journal.append([record], sync=False)
        except UnavailableError as exc:
            self.counts["journal_failures"] += 1
            log.error("journal.failed", reason=str(exc))
        # With its hash: a copy of the log elsewhere shows whether the journal was rewritten.
        outcome = more.get("outcome")
        word = f"control.{outcome}" if outcome in ("refused", "unknown") else "control.changed"
        log.info(word, method=method, subject=subject, by=by, uid=uid, chain=chain or None)

    def _record(self, kind: str) -> dict[str, Any]:
        """The first fields of a record other than an event."""
        of = {"seq": self._seq, "clock": self.node.stamp(), "timestamp": time.time()}
        return {"type": kind, **self._head(), **of}

    def tell(self, event: Event) -> None:
        """An event for this node's own journal and subscribers."""
        self.journal([event], sync=False)
        self.recent.append((self._packet([event]), event))
        self.recent_total += 1
        self.pump()

    def probe_journal(self) -> None:
        """After a failure: does the disk accept data again?"""
        node = self.node
        if self._unsaved_mark is not None:
            self.save_mark(self._unsaved_mark)  # the clock asks for its next mark only half a block later
        # the value may not change for a long time: then nothing else would save it again
        for save, what in list(self._unsaved.items()):
            self._save(save, what)
        if node.journal_failure:
            record = {**self._record("journal-restored"), "reason": node.journal_failure, "room": "." * PROBE_BYTES}
            try:
                self._journal.append([record], sync=True)
            except UnavailableError:
                return
            self.node.impaired("")
            log.info("journal.restored")
        if self.chain is not None:
            with contextlib.suppress(UnavailableError):
                self.chain.catch_up()

    # ---- time

    async def run(self) -> None:
        """Wake the node at its times."""
        while True:
            with trio.CancelScope() as self._scope:
                self._armed_at = math.nan
                self._rearm()
                await trio.sleep_forever()
            self.node.handle_timer(self.now())
            self.pump()

    def _rearm(self) -> None:
        at = self.node.timer_at()
        if at == self._armed_at:
            return  # the usual case: moving a trio deadline costs more than a whole ack
        self._armed_at = at
        if at == math.inf:
            self._scope.deadline = math.inf
        else:
            self._scope.deadline = trio.current_time() + max(0.0, at - boottime())

    # ---- output

    def pump(self) -> None:
        """Perform the node's output, until there is no more."""
        pump(self.node, self)
        self._rearm()
        if self.recent_total != self._news_total:
            self._news_total = self.recent_total
            self.news.set()

    def stop(self, reason: str) -> None:
        """Stop the daemon, with this sentence."""
        self.fatal_reason = reason
        self.fatal.set()

    def save_mark(self, mark: int) -> None:
        """Write it to the disk; if the disk refuses, the probe tries again."""
        try:
            self._keeper.save_mark(mark)
        except UnavailableError as exc:
            self._unsaved_mark = mark
            log.error("state.not_saved", reason=str(exc))
        else:
            self._unsaved_mark = None

    def save_pin(self, identity: str) -> None:
        """Write it to the disk, now or later."""
        self._save(self._keeper.save_pin, identity)

    def save_definitions(self, definitions: Mapping[str, tuple[str, int, float]]) -> None:
        """Write it to the disk, now or later."""
        self._save(self._keeper.keep_definitions, definitions)

    def save_alarms(self) -> None:
        """Write it to the disk, now or later."""
        self._save(self._keeper.save_alarms, self.node.alarms.kept())

    def journal(self, events: Sequence[Event], *, sync: bool) -> str:
        """Append the lines; returns why that failed."""
        head = self._head()
        try:
            self._journal.append([flatten(event, seq=self._seq, **head) for event in events], sync=sync)
        except UnavailableError as exc:
            self.counts["journal_failures"] += 1
            if not self.node.journal_failure:
                log.error("journal.failed", reason=str(exc))
            return str(exc)
        if self.node.journal_failure:  # a short record fits before the next probe: the core takes part again at once
            log.info("journal.restored")
        return ""

    def keep_request(self, of: Registration) -> str:
        """Write an accepted trigger to the disk; returns why that failed."""
        try:
            self._keeper.keep_request(of)
        except UnavailableError as exc:
            return str(exc)
        return ""

    def forget_request(self, run: str) -> None:
        """The ledger has that trigger."""
        self._keeper.forget_request(run)

    def ask(self, requests: Sequence[LedgerRequest]) -> None:
        """Pass them to the ledger service."""
        self._ledger.submit(requests)

    def launch(self, launch: Launch) -> None:
        """Pass it to the runners."""
        self._launch(launch)

    def cancel(self, run: str, reason: str) -> None:
        """Pass it to the runners."""
        self._cancel(run, reason)

    def publish(self, events: list[Event]) -> None:
        """Publish on the bus, in as few messages as the size allows."""
        for packet, keep_s in self._packets_to_send(events):
            self._publish(packet, keep_s)

    def send(self, name: str, event: Event) -> None:
        """Send to one node on the bus."""
        self.bus.send(name, codec.encode(self._packet([event])))

    def say_to(self, name: str, event: PeerAsk | PeerAnswer) -> None:
        """Send a question of the shell, or its answer, to one node."""
        event.clock, event.timestamp = self.node.stamp(), time.time()
        self.send(name, event)

    def elected(self, elected: Elected) -> None:
        """Call the handler that is registered for its topic."""
        handler = self.handlers.get(elected.topic)
        if handler is not None:
            handler(elected)

    def reply(self, reply: Reply) -> None:
        """Answer the waiting caller."""
        waiting = self._replies.pop(reply.id, None)
        if waiting is not None:
            waiting(reply)

    def log(self, journal: Sequence[Event], notices: Sequence[Notice]) -> None:
        """Log them; some are remembered for `why`. The listeners hear of what this node has done."""
        for event in journal:
            line = runlog.line_of(event, self.node.full_hostname, self.node.jobs)
            if line is not None:
                getattr(log, line.level)(line.event, **line.fields)
        for notice in notices:
            getattr(log, runlog.level_of(notice.event))(notice.event, **notice.fields)
            self._remember(notice)
        for listener in self.listeners:
            listener(journal, notices)

    def state(self, state: str) -> None:
        """Pass it to the systemd notifier."""
        self.on_state(state)

    def _remember(self, notice: Notice) -> None:
        """Remember notices that only `why` needs later."""
        if notice.event == "node.lost":
            self.lost_at[host_of(str(notice.fields["peer"]))] = boottime()
        elif notice.event == "node.joined":
            self.lost_at.pop(host_of(str(notice.fields["peer"])), None)
        elif notice.event.startswith("fires."):
            self._passed_over.append(notice)

    def passed_over(self, job: str, fire_at: float) -> str:
        """skipped or coalesced, if this node did so with that fire time since its start; otherwise ""."""
        for notice in self._passed_over:
            fields = notice.fields
            if fields["job"] == job and fields["first"] <= fire_at <= fields["last"]:
                return notice.event.removeprefix("fires.")
        return ""

    def _save(self, save: Callable[[Any], None], what: Any) -> None:
        """The value counts from now on, even if the disk refuses it: a node that forgets its pin compares ledgers as at
        its first start.

        A refused value is tried again; of several failures in a row only the first is logged.
        """
        try:
            save(what)
        except UnavailableError as exc:
            if save not in self._unsaved:
                log.error("state.not_saved", reason=str(exc))
            self._unsaved[save] = what
        else:
            self._unsaved.pop(save, None)

    def _head(self) -> dict[str, Any]:
        node = self.node
        return {
            "hostname": node.hostname,
            "pid": node.pid,
            "incarnation": node.incarnation,
            "utcoffset": self._utcoffset,
        }

    def _packet(self, events: Sequence[Event]) -> Packet:
        node = self.node
        packet = Packet(
            PROTOCOL_MAJOR,
            node.settings.cluster,
            node.hostname,
            node.pid,
            node.incarnation,
            self._seq,
            self._utcoffset,
            list(events),  # type: ignore[arg-type]  # every Event that the core makes is one of AnyEvent
        )
        self._seq += len(events)
        return packet

    def _packets_to_send(self, events: list[Event]) -> list[tuple[Packet, float]]:
        """Packets, each with how long (seconds) it must be kept if it cannot be sent (0.0: not at all)."""
        if self.outbox is None or not any(isinstance(event, MUST_ARRIVE) for event in events):
            return [(packet, 0.0) for packet in self._packets(events)]
        kinds: dict[float, list[Event]] = {}
        for event in events:
            kinds.setdefault(next((s for kind, s in KEEP_S.items() if isinstance(event, kind)), 0.0), []).append(event)
        return [(packet, keep_s) for keep_s in sorted(kinds) for packet in self._packets(kinds[keep_s])]

    def renewed(self, data: bytes) -> bytes:
        """A packet of an earlier process of this node, with the present sender fields."""
        packet, _ = codec.decode(data)
        return codec.encode(self._packet(packet.events))

    def _packets(self, events: list[Event]) -> list[Packet]:
        """The events of one tick, in as few packets as the size allows."""
        if len(events) <= PACKET_EVENTS:
            packets = [self._packet(events)]
        else:
            packets = []
            part: list[Event] = []
            size = 0
            for event in events:
                length = len(codec.encode_event(event))
                if part and size + length > PACKET_BYTES:
                    packets.append(self._packet(part))
                    part, size = [], 0
                part.append(event)
                size += length
            packets.append(self._packet(part))
        for packet in packets:
            for event in packet.events:
                self.recent.append((packet, event))
            self.recent_total += len(packet.events)
        return packets

    def _publish(self, packet: Packet, keep_s: float) -> None:
        data = codec.encode(packet)
        if len(data) <= MESSAGE_BYTES_MAX:
            if keep_s and self.outbox is not None:
                self.outbox.put(data, keep_s)
            else:
                self.bus.publish(data)
        elif len(packet.events) > 1:  # unusually large events: one by one, each with its own number
            for number, event in enumerate(packet.events, packet.seq):
                self._publish(msgspec.structs.replace(packet, events=[event], seq=number), keep_s)
        else:
            # The ledger may have such a row from an older version: one run must not stop every node.
            self.counts["too_large"] += 1
            log.error("message.too_large", about=type(packet.events[0]).__name__, size=len(data))
