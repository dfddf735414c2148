"""The bus under attack: spoilt bytes on the wire, odd messages under a valid key, repeated messages.

The first byte of an input says how the rest is sealed (HOW); a real node behind a real driver hears it.
"""

from __future__ import annotations

import hashlib
import hmac
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from support.memory import MemoryLedger
from support.small_cluster import EPOCH, MONO, SETTINGS, job

from coordd.core.breaker import Breaker
from coordd.core.ledger.rows import JobRow, LedgerTime
from coordd.core.node.node import Node
from coordd.core.ready import LedgerRequest, Now
from coordd.core.wire import codec, events
from coordd.core.wire.envelope import ACCEPT, ALL, HEADER_BYTES, MAC_AT, RETIRED, SIGN, Envelopes, Key, Keyring
from coordd.core.wire.events import MESSAGE_BYTES_MAX, Packet
from coordd.core.wire.journal_line import encode_line
from coordd.core.wire.windows import SENDERS_MAX, Windows
from coordd.errors import LocalProtocolError, RemoteProtocolError
from coordd.services.driver import Driver, Keeper
from coordd.services.sealed_bus import SealedBus
from fuzz.mutate import Pool, distort, pick
from fuzz.trial import Try, Wrong, check

CLUSTER = "default"
INBOX = "a.1"
SIGNING = Key("new", SIGN, b"n" * 32)
OLD = Key("old", ACCEPT, b"o" * 80)
KEYRING = Keyring((Key("gone", RETIRED, b""), OLD, SIGNING))
PEER = Envelopes(Keyring((OLD._replace(state=SIGN), SIGNING._replace(state=ACCEPT))), CLUSTER, "b.2")
STRANGER = Envelopes(Keyring((SIGNING._replace(secret=b"?" * 32),)), CLUSTER, "b.2")

# How the bytes of an input are sealed: not at all; for all, or for our inbox; the same twice; for
# another node; with one flipped bit; with a secret of another cluster.
HOW = RAW, TO_ALL, TO_US, TWICE, ASTRAY, ALTERED, FORGED = range(7)

# Virtual seconds between two messages: elections come to their timeouts, members fall silent.
STEP_S = 0.05

# A message that makes a node say this much in answer is an amplifier.
ANSWER_BYTES_MAX = 16 * MESSAGE_BYTES_MAX

# A question of this node that waits for its answers.
ASKED = "q0"

JOBS = (job("sales"), job("tick", every_s=5.0))


def packets() -> list[Packet]:
    """One of each event, of three peers, and some together."""
    candidacy = events.Candidacy(1, 5, "b.2")
    action = events.Action("sales", "sales#1", 0, 0.0, False, "d1", '{"day": "x"}')
    known = events.PeerSummary("c.3", "1-c", "x", ("gpu",))
    ended = events.RunOutcome("task-failed", "sales#2", 7, EPOCH - 60.0, 60.0, 1, 7, "c.3", 3, "x", "y")
    state: dict[str, Any] = {"freq": 2.0, "loadavg": (0.5, 0.4, 0.3), "state": "ready", "sw_ver": "1", "tags": ("t",)}
    task: dict[str, Any] = {
        "uuid": "u",
        "name": "sales",
        "run": "sales#1",
        "token": 7,
        "nonce": "n",
        "node": "b.2",
        "kwargs": '{"day": "x"}',
    }
    made: list[events.AnyEvent] = [
        events.WorkerElect(id="sales#1/0", topic="command", candidacy=candidacy, view=("a.1", "b.2"), action=action),
        events.WorkerElect(id="drill-1", topic="drill", candidacy=candidacy, view=("a.1", "b.2", "c.3"), digest="d"),
        events.WorkerElectAck(id="sales#1/0", candidacy=candidacy),
        events.WorkerOnline(**state),
        events.WorkerHeartbeat(**state),
        events.WorkerOffline(**state),
        events.WorkerHello(**state),
        events.WorkerHello(**state, to=INBOX),
        events.WorkerHelloReply(
            **state, to=INBOX, members=("b.2", "c.3"), tokens={"sales": 3}, known=(known,), outcomes=(ended,)
        ),
        events.WorkerBeat(ask=True),
        events.WorkerSuspect(suspects=(known,)),
        events.WorkerVouch(known=(known,)),
        events.TaskSent(**task),
        events.TaskReceived(**task),
        events.TaskStarted(**task, application_id="app-1"),
        events.TaskSucceeded(**task, runtime=1.5, exit_code=0),
        events.TaskFailed(**task, exit_code=3, exception="x"),
        events.TaskRejected(**task, reason="overlap"),
        events.TaskRevoked(**task),
        events.TaskRetried(**task, retries=1),
        events.ControlRevoke(run="sales#1"),
        events.ControlCancel(run="sales#1", reason="person"),
        events.ControlClear(ids=("lost:sales#1",), note="seen", by="ann"),
        events.PeerAsk(id="q1", what="journal", subject="sales#1"),
        events.PeerAnswer(id=ASKED, body='{"events": []}'),
    ]
    for clock, event in enumerate(made, 10):
        event.clock, event.timestamp = clock, EPOCH
    singles = [[event] for event in made]
    groups = [made[3:8], made[12:18], made]
    return [
        Packet(
            events.PROTOCOL_MAJOR, CLUSTER, "bcd"[seq % 3], 2 + seq % 3, f"{1 + seq % 2}-{'bcd'[seq % 3]}", seq, 1, of
        )
        for seq, of in enumerate(singles + groups, 100)
    ]


class Wire:
    """ports.Bus: what the node says is read again as a peer would."""

    url = "memory://fuzz"
    state = "connected"
    error = ""

    def __init__(self) -> None:
        self.said = 0

    def publish(self, data: bytes, confirmed: Callable[[bool], None] | None = None) -> None:
        """Every message of the node must be readable: an enemy must not silence it."""
        check(codec.decode(PEER.open(data))[1] == 0, "the node has said what its peers do not understand")
        self.said += len(data)

    def send(self, name: str, data: bytes) -> None:
        self.said += len(data)

    def peers(self) -> Sequence[str]:
        return ()

    async def receive(self, *_: Any) -> None: ...

    def statistics(self) -> dict[str, int]:
        return {}

    def close(self) -> None: ...


class Paper:
    """ports.Journal, and the keeper's disk."""

    def append(self, records: Sequence[dict[str, Any]], *, sync: bool) -> None:
        try:
            for record in records:
                encode_line(record)
        except (ValueError, TypeError, RecursionError) as exc:  # as adapters.disk.journal does
            raise LocalProtocolError(f"a record that is not JSON: {exc}") from exc

    def close(self) -> None: ...


class Questions:
    """services.ledger.LedgerService, as far as a driver needs it: what the node asks the ledger."""

    def __init__(self) -> None:
        self.asked: list[LedgerRequest] = []
        self.breaker = Breaker("ledger")
        self.submit = self.asked.extend


class PlainDriver(Driver):
    """Time is what the world says, and nobody has to be woken."""

    time = Now(MONO, EPOCH)

    def now(self) -> Now:
        return self.time

    def _rearm(self) -> None: ...


class World:
    """One node and all that it hears."""

    def __init__(self) -> None:
        node = Node(hostname="a", pid=1, incarnation="1-a", settings=SETTINGS, clock_mark=0, rng=random.Random(1))
        self.wire = Wire()
        self.questions = Questions()
        self.sealed = SealedBus(self.wire, KEYRING, CLUSTER, inbox=INBOX)
        self.windows = Windows()
        self.driver = PlainDriver(
            node,
            bus=self.sealed,
            ledger=self.questions,  # type: ignore[arg-type]  # all that a driver asks of it
            journal=Paper(),
            keeper=Keeper(lambda _mark: None, lambda _of: None, lambda _run: None),
            launch=lambda _launch: None,
            cancel=lambda _run, _reason: None,
            windows=self.windows,
        )
        self.ledger = MemoryLedger(clock=lambda: LedgerTime(self.driver.time.wall, self.driver.time.mono))
        for one in JOBS:
            self.ledger._store.put_job(JobRow(one.name, horizon=EPOCH))
            self.ledger._store.put_meta("identity_from", "0")
        self.sealed._deliver = self._opened
        self.arrived = b""
        self.outcome = ""
        node.topics.add("drill")
        node.set_jobs({one.name: one for one in JOBS}, self.driver.now())
        self.driver.feed(node.start, ())
        self._answer()

    async def attempt(self, data: bytes) -> str:
        """One input."""
        how, rest = data[0] % len(HOW) if data else RAW, data[1:]
        self.wire.said = 0
        if how == RAW:
            self._arrives(rest)
        elif not 0 < len(rest) <= MESSAGE_BYTES_MAX:
            return "cannot be sealed"
        elif how == ASTRAY:
            self._must_not_open(PEER.seal(rest, "b.2"))
        elif how == FORGED:
            self._must_not_open(STRANGER.seal(rest))
        elif how == ALTERED:
            sealed = bytearray(PEER.seal(rest))
            bit = int.from_bytes(hashlib.sha256(rest).digest()[:4]) % (8 * len(sealed))
            sealed[bit // 8] ^= 1 << bit % 8
            self._must_not_open(bytes(sealed))
        else:
            sealed_rest = PEER.seal(rest, INBOX if how == TO_US else ALL)
            self._arrives(sealed_rest)
            if how == TWICE:
                first, before = self.outcome, self.driver.recent_total
                self._arrives(sealed_rest)
                check(self.driver.recent_total == before, "what came a second time was taken in")
                self.outcome = first
        self._live_on()
        return self.outcome

    # ---- single steps

    def _must_not_open(self, data: bytes) -> None:
        before = sum(self.sealed.refused.values())
        self._arrives(data)
        check(sum(self.sealed.refused.values()) == before + 1, "it was altered, or meant for another, and not refused")

    def _arrives(self, data: bytes) -> None:
        self.arrived, self.outcome = data, ""
        before = dict(self.sealed.refused)
        self.sealed._open(data)
        self.driver.pump()  # the burst is over
        if not self.outcome:
            kinds = [kind for kind, count in self.sealed.refused.items() if count != before[kind]]
            self.outcome = kinds[0] if kinds else "nothing"

    def _opened(self, payload: bytes) -> None:
        """In the place of the driver's ``deliver``: the envelope was opened."""
        if payload:
            self._is_ours(payload)
            self._means_the_same(payload)
        counts, late = self.driver.counts, self.driver.counts["late"]
        malformed, refused, taken = counts["malformed"], counts["refused"], self.driver.recent_total
        self.driver.deliver(payload)
        if counts["malformed"] != malformed:
            self.outcome = "malformed"
        elif self.driver.recent_total != taken:
            self.outcome = "late" if counts["late"] != late else "accepted"
        else:
            self.outcome = "not taken" if counts["refused"] != refused else "accepted"

    def _is_ours(self, payload: bytes) -> None:
        """Asserts, with the library's HMAC, that a holder of a key has made this envelope for us."""
        data = self.arrived
        key = {key.id: key for key in (OLD, SIGNING)}[data[4:12].rstrip(b"\0").decode()]
        said = data[MAC_AT:HEADER_BYTES]
        for channel in (ALL, INBOX):
            covered = data[:MAC_AT] + f"{CLUSTER}\0{channel}\0".encode() + payload
            if hmac.digest(key.secret, covered, "sha256") == said:
                return
        raise Wrong("an envelope was opened that nobody has sealed for us")

    def _means_the_same(self, payload: bytes) -> None:
        """A decoded message that is encoded again decodes to the same."""
        try:
            packet, _ = codec.decode(payload)
        except RemoteProtocolError:
            return
        again = codec.encode(packet)
        if len(again) <= MESSAGE_BYTES_MAX:  # a number that came as an integer may take more room as a fraction
            read, dropped = codec.decode(again)
            check(dropped == 0 and codec.encode(read) == again, "a packet, said again, means something else")

    def _live_on(self) -> None:
        """The node goes on: the ledger answers, time passes, timers ring."""
        driver = self.driver
        self._answer()
        driver.time = Now(driver.time.mono + STEP_S, driver.time.wall + STEP_S)
        if driver.node.timer_at() <= driver.time.mono:
            driver.node.handle_timer(driver.time)
            driver.pump()
            self._answer()
        check(driver.node.timer_at() < driver.time.mono + 3600.0, "the node has no timer any more")
        check(not driver.fatal.is_set(), f"a ready node gave up: {driver.fatal_reason}")
        check(len(self.windows._windows) <= SENDERS_MAX, "more senders are remembered than should be")
        check(self.wire.said <= ANSWER_BYTES_MAX, f"the node said {self.wire.said} bytes to one message")

    def _answer(self) -> None:
        for _ in range(1000):
            if not self.questions.asked:
                return
            asked, self.questions.asked[:] = list(self.questions.asked), []
            at = self.driver.time.mono
            self.driver.ledger_answers([(of.id, self.ledger.ask(of.request), at) for of in asked])
        raise Wrong("the node asks the ledger again and again")


class BusTarget:
    """Envelopes, packets, windows and the node behind them."""

    name = "bus"
    what = "envelopes, packets, windows, a node"
    limit_s = 2.0

    def __init__(self) -> None:
        plain = [codec.encode(packet) for packet in packets()]
        self._trees = [msgspec.msgpack.decode(data) for data in plain]
        sealed = [PEER.seal(data, pick(random.Random(at), (ALL, INBOX))) for at, data in enumerate(plain)]
        words = [
            b"CD1",
            b"CD1\x01",
            b"old\0\0\0\0\0",
            b"gone\0\0\0\0",
            b"\xa4type",
            b"worker-elect",
            b"\xdf\xff\xff\xff\xff",
            b"\xdd\xff\xff\xff\xff",
            b"\xc6\xff\xff\xff\xff",
            b"\xcb\x7f\xf8" + b"\0" * 6,
            b"\xcf" + b"\xff" * 8,
        ]
        self._wire = Pool([*plain, *sealed], words)

    def make(self, rng: random.Random) -> bytes:
        """Bytes for the wire, or a payload to be sealed: spoilt as bytes, or as a tree that packs."""
        if rng.random() < 0.2:
            return bytes((RAW,)) + self._wire.make(rng)
        how = bytes((pick(rng, (TO_ALL, TO_ALL, TO_ALL, TO_US, TWICE, TWICE, ASTRAY, ALTERED, ALTERED, FORGED)),))
        if rng.random() < 0.2:
            return how + self._wire.make(rng)
        tree = dict(pick(rng, self._trees))
        tree["seq"] = int(rng.random() * 2**20)  # otherwise nearly all messages would be duplicates
        try:
            return how + msgspec.msgpack.encode(distort(tree, rng, finite=False))[: 2 * MESSAGE_BYTES_MAX]
        except OverflowError:  # a number beyond 64 bits
            return how + self._wire.make(rng)

    @asynccontextmanager
    async def world(self) -> AsyncIterator[Try]:
        """A new node."""
        yield World().attempt
