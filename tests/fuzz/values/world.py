"""The world of an input: one node behind a ledger and a bus that take any value, and people who look."""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter
from types import SimpleNamespace
from typing import Any

import msgspec
from support.ledger_calls import grant_of
from support.small_cluster import EPOCH, MONO, SETTINGS, job

from coordd.adapters.ledger.redis_ledger import answer_of
from coordd.adapters.ledger.redis_rows import attempts_of, row_of
from coordd.adapters.ledger.sqlite_rows import ATTEMPT_LIST, RUN_LIST
from coordd.config.sections import Config, NodeConfig
from coordd.core.jobs.job import Breaker, Command, Rate, Rates
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import Cancel, Claim, ListOpen, Prune, Resolve, Revoke, Suspend
from coordd.core.ledger.rows import OF_JOB, AttemptRow, Hold, LedgerTime, Row
from coordd.core.ledger.runner_requests import Gate, Registration, Renew, Request
from coordd.core.ledger.steps import Life
from coordd.core.ledger.words import BAD, UNAVAILABLE, Policy, Token
from coordd.core.node.node import Node
from coordd.core.ready import Now
from coordd.core.wire import codec
from coordd.core.wire.events import PeerAnswer, PeerAsk, flat
from coordd.errors import UnavailableError
from coordd.launching import LaunchBuilder
from coordd.services.driver import Keeper
from coordd.services.relay import Relay, _Question
from coordd.services.runners import Runners
from coordd.services.views.objects import attempt_view, election_view, nodes_view, run_view
from coordd.services.views.why import why_run
from fuzz.bus import ASKED, JOBS, Paper, PlainDriver, Questions, Wire
from fuzz.trial import Wrong, check
from fuzz.values.long import is_left_out, is_long
from fuzz.values.spoil import bytes_of, numbered, storable
from fuzz.values.tables import UNCHECKED, LooseLedger, written

# What an input is. All other kinds are rows, and named after their table.
PACKET, OPEN, CLAIMED, HASH, ATTEMPTS = ("packet", "open-reply", "claim-reply", "hash", "attempts-hash")

# The outcomes; the kind of the input follows.
TAKEN, REFUSED, NOT_ASKED = "accepted", "refused by the codec", "not asked for"
TOLD, FAILED, NOT_STORED = "told as bad", "contained as one failed question", "cannot be stored"
LEFT_OUT = "left out: a long backfill"

STEP_S = 0.5

# Maximum number of the ledger's steps for one input; more is an endless loop.
ROUNDS_MAX = 300

# A node claims a run at most this many steps of time after a sweep has shown it.
WAITS_MAX = 40

WITH_ARGS = job(
    "sales",
    params={"who": "x"},
    launch=Command(argv=("/bin/echo", "{who}", "{date}", "{fire_time}")),
    overlap="allow",
    pool="small",
    pool_size=50,
    rate=Rates(cluster=Rate(1000, 60)),
    breaker=Breaker(),
)
LEDGER_TIME = LedgerTime(EPOCH, MONO, "boot")


def row(state: str, run: str = "sales#1") -> Row:
    """A run's row as a node writes it."""
    made = Life()._new_row(Registration(run, "sales", "d1", Policy(), EPOCH, scheduled=False), LEDGER_TIME)
    made.state = state
    if state not in ("pending", "rejected", "missed"):
        made.token, made.nonce, made.node, made.lease = Token(1_738_137_600_000_001), "n", "b.2", 60.0
        made.until, made.boot, made.received_at = MONO - 100.0, "boot", EPOCH - 200.0
    return made


class Launcher:
    """ports.Launcher: every runner starts, and its spec can be written."""

    def __init__(self) -> None:
        self.started = 0

    def start(self, spec: dict[str, Any]) -> str:
        self.started += 1
        json.dumps(spec)
        check(all(isinstance(word, str) and "\0" not in word for word in spec["argv"]), "an argv that no kernel takes")
        return f"{spec['run']}/{spec['attempt']}"

    def command(self, _directory: str, _word: str, _reason: str) -> bool:
        return True


class Plain(Wire):
    """A bus without envelopes."""

    def publish(self, data: bytes, confirmed: Any = None) -> None:
        if codec.decode(data)[1]:
            raise Wrong(f"the node has said what its peers do not understand: {msgspec.msgpack.decode(data)}")

    def send(self, _name: str, data: bytes) -> None:
        self.publish(data)


class World:
    """One node, and people who look."""

    def __init__(self, directory: str) -> None:
        node = Node(hostname="a", pid=1, incarnation="1-a", settings=SETTINGS, clock_mark=0, rng=random.Random(1))
        self.questions = Questions()
        config = Config(node=NodeConfig(name="a", state_dir=directory, runtime_dir=directory, units="off"))
        connections = SimpleNamespace(ledger_url="sqlite:////x", ledger_options=dict)
        builder = LaunchBuilder(config, node, lambda *_: directory, connections)  # type: ignore[arg-type]  # a stand-in with what is asked of it
        self.launcher = Launcher()
        self.runners = Runners(self.launcher, builder.spec, "")  # type: ignore[arg-type]  # a stand-in with what is asked of it
        self.driver = PlainDriver(
            node,
            bus=Plain(),
            ledger=self.questions,  # type: ignore[arg-type]  # all that a driver asks of it
            journal=Paper(),
            keeper=Keeper(lambda _mark: None, lambda _of: None, lambda _run: None),
            launch=self.runners.launch,
            cancel=self.runners.cancel,
        )
        self.runners.driver = self.driver
        self.relay = Relay(self.driver, {"journal": str})
        self.peers_heard = 0
        self.driver.on_peer = self._peer
        self.ledger = LooseLedger(LEDGER_TIME)
        self.count = 0
        self.asked: Counter[str] = Counter()  # the operations of the node's questions
        self.reply: tuple[str, Any] | None = None  # what the next question of that kind is answered with
        self.fate = ""  # what became of it
        node.topics.add("drill")
        node.set_jobs({one.name: one for one in (WITH_ARGS, JOBS[1])}, self.driver.now())
        self.driver.feed(node.start, ())
        self.live_on()

    async def attempt(self, data: bytes) -> str:
        """One input."""
        said = json.loads(data)
        kind, values = said["kind"], said["values"]
        self.count += 1
        if kind == PACKET:
            outcome = self.packet(values)
        elif kind in (OPEN, CLAIMED):
            outcome = self.replied(kind, bytes_of(values))
        elif kind in (HASH, ATTEMPTS):
            outcome = self.shown(kind, bytes_of(values))
        else:
            outcome = self.written(kind, values)
        return f"{outcome}: {kind}"

    # ---- messages of a peer

    def packet(self, tree: Any) -> str:
        try:
            data = msgspec.msgpack.encode(numbered(tree))
        except OverflowError:
            return "cannot be packed"
        before, dropped, peers = self.driver.recent_total, self.driver.counts["unknown_types"], self.peers_heard
        # A question of this node, which an answer may end.
        self.relay._asked[ASKED] = _Question(dict.fromkeys(("b.2", "c.3", "d.4")))
        self.driver.deliver(data)
        self.driver.deliver(b"")
        fresh = self.driver.recent_total - before
        for packet, event in list(self.driver.recent)[-fresh:] if fresh else ():
            strict(flat(packet, event))
        self.live_on()
        strict(nodes_view(self.driver.node, 0, self.driver.now().mono))
        strict([election_view(each) for each in list(self.driver.node.elections.by_id.values())[-5:]])
        if self.driver.recent_total > before or self.peers_heard > peers:
            return TAKEN
        return "dropped" if self.driver.counts["unknown_types"] > dropped else REFUSED

    def _peer(self, sender: str, event: PeerAsk | PeerAnswer) -> None:
        """As the daemon's relay does, without its tasks: a question waits for none."""
        self.peers_heard += 1
        self.relay.heard(sender, event)
        kept = self.relay._kept["journal"]
        while kept.take.statistics().current_buffer_used:
            sender, asked = kept.take.receive_nowait()
            self.driver.say_to(sender, PeerAnswer(id=asked.id, body=json.dumps({"subject": asked.subject})))
            kept.answered(sender)

    # ---- rows of the ledger

    def written(self, table: str, values: dict[str, Any]) -> str:
        ledger = self.ledger
        if table == "meta" and is_long(str(values["key"]).removeprefix("hold:"), Hold.read(str(values["value"]))):
            return LEFT_OUT
        run = "sales#1"
        if table == "runs":
            run = values["run"] if isinstance(values["run"], str) else run
        else:
            self._settle()
            run = self._pending()
        try:
            ledger.put(table, {column: storable(each) for column, each in values.items()})
        except (sqlite3.IntegrityError, OverflowError, UnicodeEncodeError):
            return NOT_STORED
        ledger.spoilt.add(table)
        failed = ledger.failed
        self.driver.feed(self.driver.node.look_again)
        self.live_on()
        self.look(
            [Row(each) for each in ledger.db.execute(f"SELECT {RUN_LIST} FROM runs")],  # noqa: S608 - our words
            [AttemptRow(each) for each in ledger.db.execute(f"SELECT {ATTEMPT_LIST} FROM attempts")],  # noqa: S608  # our own words
        )
        bad = len(self.driver.node.bad_rows)
        if table not in ("runs", "attempts"):
            self._claims(run)
        self._act(run)
        if self.count % 10 == 0 or table in UNCHECKED:
            ledger.clear()
        if ledger.failed > failed:
            return FAILED
        return TOLD if bad else TAKEN

    def _settle(self) -> None:
        """Jobs that the ledger knows, as the rules write them, with the rules in force."""
        if not self.ledger.rows("jobs"):
            for one in written()["meta"]:
                if one["key"] in ("rules", "identity_from"):
                    self.ledger.put("meta", one)
            for table in ("activations", "starts", "standing", "jobs"):
                for one in written()[table]:
                    self.ledger.put(table, one)
            for one in written()["jobs"]:
                self.ledger.number(OF_JOB + one["job"])

    def _pending(self) -> str:
        """A run that waits to be claimed."""
        made = row("pending", f"sales#{self.count}")
        self.ledger.put_run(made)
        return made.run

    def _claims(self, run: str) -> None:
        """Time for the node to claim it."""
        claims = self.asked[Claim.op]
        for _ in range(WAITS_MAX):
            if self.asked[Claim.op] > claims or run not in self.driver.node.pursuits.pursuits:
                break
            self.live_on()

    def _act(self, run: str) -> None:
        """As a runner and people do."""
        ledger = self.ledger
        grant = grant_of(run, 0, 1, "n")
        ledger.ask(Gate(grant=grant))
        ledger.ask(Renew(grant=grant, lease_s=60.0, launched=True))
        ledger.ask(Cancel(run=run, by="ann"))
        ledger.ask(Resolve(run=run, outcome="relaunch", by="ann"))
        failed = ledger.failed
        word = ledger.ask(Revoke(run=run, by="ann")).word
        check(word != BAD or ledger.failed > failed, "a person cannot end a bad row")
        ledger.ask(Suspend(job="sales", suspended=True, by="ann"))
        ledger.ask(Suspend(job="sales", suspended=False, by="ann"))
        ledger.ask(Prune(keep_s=0.0, limit=100))

    def look(self, found: list[Row], tries: list[AttemptRow]) -> None:
        """As people do."""
        node = self.driver.node
        for each in found:
            strict(run_view(each, redacted=False))
            pursuit = node.pursuits.pursuits.get(each.run) if isinstance(each.run, str) else None
            json.dumps(why_run(str(each.run), each, tries, pursuit, None)).encode()
        strict([attempt_view(each) for each in tries])

    # ---- replies of a server

    def replied(self, kind: str, reply: Any) -> str:
        self.reply, self.fate = (kind, reply), NOT_ASKED
        self._settle()
        run = self._pending()
        self.driver.feed(self.driver.node.look_again)
        for _ in range(WAITS_MAX):
            self.live_on()
            if self.reply is None or run not in self.driver.node.pursuits.pursuits:
                break
        self.live_on()  # with what it was told
        self.reply = None
        self.ledger.clear()
        return self.fate

    def shown(self, kind: str, values: Any) -> str:
        if kind == HASH:
            found = row_of(values)
            self.look([found] if found else [], [])
        else:
            self.look([], attempts_of(values))
        return TAKEN

    # ---- time

    def live_on(self) -> None:
        """The ledger answers, programs end, time passes."""
        driver = self.driver
        driver.time = Now(driver.time.mono + STEP_S, driver.time.wall + STEP_S)
        self.ledger.time = LedgerTime(driver.time.wall, driver.time.mono, "boot")
        for _ in range(ROUNDS_MAX):
            if driver.node.timer_at() <= driver.time.mono:
                driver.node.handle_timer(driver.time)
                driver.pump()
            for runner in list(self.runners.runners.values()):
                driver.feed(driver.node.runner_started, runner.launch)
                driver.feed(driver.node.runner_ended, runner.launch, "success", 0, "", "", 1.0)
            self.runners.runners.clear()
            asked, self.questions.asked[:] = list(self.questions.asked), []
            if not asked:
                break
            driver.ledger_answers([(of.id, self.answer(of.request), driver.time.mono) for of in asked])
        else:
            raise Wrong("the node asks the ledger again and again")
        check(driver.node.timer_at() < driver.time.mono + 3600.0, "the node has no timer any more")
        check(not driver.fatal.is_set(), f"a ready node gave up: {driver.fatal_reason}")

    def answer(self, request: Request[Any]) -> Answer | OpenAnswer:
        self.asked[request.op] += 1
        if self.reply is not None and isinstance(request, ListOpen if self.reply[0] == OPEN else Claim):
            (_, reply), self.reply = self.reply, None
            try:
                answer = answer_of(reply)
            except UnavailableError:
                self.fate = REFUSED
                return Answer(UNAVAILABLE)
            if is_left_out(answer):
                self.fate = LEFT_OUT
                return Answer(UNAVAILABLE)
            if isinstance(answer, OpenAnswer) == isinstance(request, ListOpen):
                self.fate = TAKEN
                return answer
            self.fate = "of another operation"
        answered: Answer | OpenAnswer = self.ledger.ask(request)
        return answered


def strict(shown: Any) -> None:
    """As the control socket writes it: there is no NaN in JSON."""
    json.dumps(shown, allow_nan=False, default=str)
