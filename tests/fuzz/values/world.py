"""Values behind the codecs: rows of a ledger, replies of its server, decoded events.

The bytes of an input are JSON: what it is (KINDS) and its values. A row is written into SQLite tables that take any
value, and read by a node that sweeps, claims, launches, and shows it to people; a reply is read as Redis's; an event
is packed as a peer would. No input may end the node, and the views for people must be JSON.
"""

from __future__ import annotations

import base64
import json
import math
import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
from support.ledger_calls import grant_of
from support.small_cluster import EPOCH, MONO, SETTINGS, job

from coordd.adapters.ledger.redis_ledger import answer_of
from coordd.adapters.ledger.redis_rows import attempts_of, row_of
from coordd.adapters.ledger.sqlite_rows import (
    ADDED,
    ADDED_COLUMNS,
    ADDED_INDEXES,
    ATTEMPT_LIST,
    MIGRATIONS,
    RUN_LIST,
    Transaction,
)
from coordd.config.sections import SparkConfig
from coordd.core.jobs.job import Command
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import Cancel, Claim, ListOpen, Prune, Resolve, Revoke
from coordd.core.ledger.rows import ATTEMPT_COLUMNS, JOB_COLUMNS, RUN_COLUMNS, AttemptRow, JobRow, LedgerTime, Row
from coordd.core.ledger.rules import Rules
from coordd.core.ledger.runner_requests import Gate, Registration, Renew, Request
from coordd.core.ledger.steps import Life
from coordd.core.ledger.words import BAD, STATES, UNAVAILABLE, Policy, Token
from coordd.core.node.node import Node
from coordd.core.ready import Now
from coordd.core.wire import codec
from coordd.core.wire.events import event_type, flat
from coordd.errors import BadRowError, UnavailableError
from coordd.launching import LaunchBuilder
from coordd.services.driver import Keeper
from coordd.services.runners import Runners
from coordd.services.views.objects import attempt_view, election_view, nodes_view, run_view
from coordd.services.views.why import why_run
from fuzz.bus import JOBS, Paper, PlainDriver, Questions, Wire, packets
from fuzz.mutate import NOT_FINITE, NUMBERS, TEXTS, distort, pick
from fuzz.trial import Try, Wrong, check, scratch

PACKET, RUN, ATTEMPT, JOB, OPEN, CLAIMED, HASH = KINDS = (
    "packet",
    "run",
    "attempt",
    "job",
    "open-reply",
    "claim-reply",
    "hash",
)

STEP_S = 0.5

# Maximum number of the ledger's steps for one input; more is an endless loop.
ROUNDS_MAX = 300

# The limits of valid values, and the values next to them.
EDGES = (32_503_680_000.0, 32_503_680_001.0, 2**53, 2**53 + 1, 1_000_000, 1_000_001, 315_360_000.0, -0.0, 1e-320)
POLICIES = (
    "relaunch forbid 1 5 30.0 fixed 3600.0",
    "hold allow 3 0 0.0 exponential 1e9",
    "relaunch queue 0 0 0 linear 0",
    "relaunch forbid nan 5 30.0 fixed 3600.0",
    "relaunch forbid 1 5 nan fixed 3600.0",
    "",
    "x " * 7,
    "relaunch",
)
ARGS = (
    "{}",
    '{"who": "ann"}',
    '{"who": 5}',
    "not json",
    "[]",
    "null",
    '{"who": "a\\u0000"}',
    '{"who": "\\ud800"}',
    "[" * 3000,
    '{"date": "x"}',
    "9" * 5000,
    '{"who": ' + '"x' * 50,
)
WITH_ARGS = job("sales", params={"who": "x"}, launch=Command(argv=("/bin/echo", "{who}", "{date}", "{fire_time}")))


def row(state: str) -> Row:
    """A run's row as a node writes it."""
    made = Life()._new_row(Registration("sales#1", "sales", "d1", Policy(), EPOCH, scheduled=False), LEDGER_TIME)
    made.state = state
    if state not in ("pending", "rejected", "missed"):
        made.token, made.nonce, made.node, made.lease = Token(1_738_137_600_000_001), "n", "b.2", 60.0
        made.until, made.boot, made.received_at = MONO - 100.0, "boot", EPOCH - 200.0
    return made


LEDGER_TIME = LedgerTime(EPOCH, MONO, "boot")


class LooseLedger:
    """core.ledger's rules over SQLite tables in memory that take any value in any column."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        added = [f"ALTER TABLE {table} ADD COLUMN {column} {declared}" for table, column, declared in ADDED_COLUMNS]
        for statement in (*MIGRATIONS[0], *added, *ADDED.values(), *ADDED_INDEXES):
            self.db.execute(statement.replace(" NOT NULL", "").replace("WITHOUT ROWID", ""))
        self.rules = Rules()
        self.time = LEDGER_TIME

    def put(self, table: str, columns: tuple[str, ...], values: list[Any]) -> None:
        names = ", ".join(f'"{column}"' for column in columns)
        marks = ", ".join("?" * len(columns))
        self.db.execute(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", values)  # noqa: S608 - our words

    def ask(self, request: Request[Any]) -> Any:
        """As SqliteLedger does it, and as LedgerService answers for a row that is bad."""
        self.db.execute("BEGIN")
        store = Transaction(self.db, writes=True)
        try:
            answer = self.rules.answer(store, request, self.time)
            if isinstance(answer, OpenAnswer):
                answer.bad.update(store.bad)
        except (BadRowError, AssertionError) as exc:  # a move that the table of states forbids
            answer = Answer(BAD, by=str(exc))
            self.db.execute("ROLLBACK")
        else:
            self.db.execute("COMMIT")
        return answer

    def clear(self) -> None:
        for table in ("runs", "attempts", "jobs", "standing", "activations"):
            self.db.execute(f"DELETE FROM {table}")  # noqa: S608 - our words


class Launcher:
    """ports.Launcher: every runner starts, and its spec can be written."""

    def start(self, spec: dict[str, Any]) -> str:
        json.dumps(spec)
        check(all(isinstance(word, str) and "\0" not in word for word in spec["argv"]), "an argv that no kernel takes")
        return f"{spec['run']}/{spec['attempt']}"

    def command(self, _directory: str, _word: str, _reason: str) -> bool:
        return True


class World:
    """One node, and people who look."""

    def __init__(self, directory: str) -> None:
        node = Node(hostname="a", pid=1, incarnation="1-a", settings=SETTINGS, clock_mark=0, rng=random.Random(1))
        self.questions = Questions()
        config = SimpleNamespace(
            node=SimpleNamespace(state_dir=directory, name="a"),
            spark=SparkConfig(),
            control=SimpleNamespace(socket="/run/coordd/coordd.sock"),
            cluster=SETTINGS_OF_CLUSTER,
        )
        connections = SimpleNamespace(ledger_url="sqlite:////x", ledger_options=dict)
        builder = LaunchBuilder(config, node, lambda *_: directory, connections)  # type: ignore[arg-type]  # a stand-in with what is asked of it
        self.runners = Runners(Launcher(), builder.spec, "")  # type: ignore[arg-type]  # a stand-in with what is asked of it
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
        self.ledger = LooseLedger()
        self.count = 0
        self.reply: list[Any] | None = None  # what the next question is answered with
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
            return self.packet(values)
        if kind in (OPEN, CLAIMED):
            return self.replied(bytes_of(values))
        if kind == HASH:
            return self.shown(bytes_of(values))
        return self.written(kind, values)

    # ---- messages of a peer

    def packet(self, tree: Any) -> str:
        try:
            data = msgspec.msgpack.encode(numbered(tree))
        except OverflowError:
            return "cannot be packed"
        before, dropped = self.driver.recent_total, self.driver.counts["unknown_types"]
        self.driver.deliver(data)
        self.driver.deliver(b"")
        fresh = self.driver.recent_total - before
        for packet, event in list(self.driver.recent)[-fresh:] if fresh else ():
            strict(flat(packet, event))
        self.live_on()
        strict(nodes_view(self.driver.node, 0, self.driver.now().mono))
        strict([election_view(each) for each in list(self.driver.node.elections.by_id.values())[-5:]])
        if self.driver.recent_total > before:
            return "accepted"
        return "dropped" if self.driver.counts["unknown_types"] > dropped else "malformed"

    # ---- rows of the ledger

    def written(self, kind: str, values: dict[str, Any]) -> str:
        table, columns = {
            RUN: ("runs", RUN_COLUMNS),
            ATTEMPT: ("attempts", ATTEMPT_COLUMNS),
            JOB: ("jobs", JOB_COLUMNS),
        }[kind]
        stored = [storable(values.get(column)) for column in columns]
        if kind != RUN:
            self.ledger.put("runs", RUN_COLUMNS, list(row("pending").values()))
        try:
            self.ledger.put(table, columns, stored)
        except (sqlite3.IntegrityError, OverflowError, UnicodeEncodeError):
            return "cannot be stored"
        run = stored[0] if kind != JOB and isinstance(stored[0], str) else "sales#1"
        self.driver.feed(self.driver.node.look_again)
        self.live_on()
        found = [Row(each) for each in self.ledger.db.execute(f"SELECT {RUN_LIST} FROM runs")]  # noqa: S608 - our words
        tries = [AttemptRow(each) for each in self.ledger.db.execute(f"SELECT {ATTEMPT_LIST} FROM attempts")]  # noqa: S608  # our own words
        self.look(found, tries)
        bad = len(self.driver.node.bad_rows)
        grant = grant_of(run, 0, 1, "n")
        self.ledger.ask(Gate(grant=grant))
        self.ledger.ask(Renew(grant=grant, lease_s=60.0, launched=True))
        self.ledger.ask(Cancel(run=run, by="ann"))
        self.ledger.ask(Resolve(run=run, outcome="relaunch", by="ann"))
        check(self.ledger.ask(Revoke(run=run, by="ann")).word != BAD, "a person cannot end a bad row")
        self.ledger.ask(Prune(keep_s=0.0, limit=100))
        if self.count % 10 == 0:
            self.ledger.clear()
        return "told as bad" if bad else "accepted"

    def look(self, found: list[Row], tries: list[AttemptRow]) -> None:
        """As people do."""
        node = self.driver.node
        for each in found:
            strict(run_view(each, redacted=False))
            pursuit = node.pursuits.pursuits.get(each.run) if isinstance(each.run, str) else None
            json.dumps(why_run(str(each.run), each, tries, pursuit, None)).encode()
        strict([attempt_view(each) for each in tries])

    # ---- replies of a server

    def replied(self, reply: Any) -> str:
        self.reply = reply
        self.ledger.put("runs", RUN_COLUMNS, list(row("pending").values()))
        self.driver.feed(self.driver.node.look_again)
        self.live_on()
        self.ledger.clear()
        return "read"

    def shown(self, values: Any) -> str:
        if not isinstance(values, list) or not all(value is None or isinstance(value, bytes) for value in values):
            return "cannot be a hash"
        if len(values) == len(RUN_COLUMNS):
            found = row_of(values)
            self.look([found] if found else [], [])
        flat_values = [value or b"" for value in values[: len(values) // 2 * 2]]
        self.look([], attempts_of(flat_values))
        return "read"

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
        if self.reply is not None and isinstance(request, (ListOpen, Claim)):
            reply, self.reply = self.reply, None
            try:
                answer = answer_of(reply)
            except UnavailableError:
                return Answer(UNAVAILABLE)
            if isinstance(answer, OpenAnswer) == isinstance(request, ListOpen):
                return answer
        answered: Answer | OpenAnswer = self.ledger.ask(request)
        return answered


class Plain(Wire):
    """A bus without envelopes."""

    def publish(self, data: bytes, confirmed: Any = None) -> None:
        if codec.decode(data)[1]:
            raise Wrong(f"the node has said what its peers do not understand: {msgspec.msgpack.decode(data)}")


SETTINGS_OF_CLUSTER = SimpleNamespace(renew_interval=5.0, ledger_timeout=2.0, kill_grace=10.0)


def strict(shown: Any) -> None:
    """As the control socket writes it: there is no NaN in JSON."""
    json.dumps(shown, allow_nan=False, default=str)


def numbered(tree: Any) -> Any:
    """The numbers that JSON cannot hold, from their replacements."""
    if isinstance(tree, str) and tree.startswith("\0number "):
        return float(tree[8:])
    if isinstance(tree, list):
        return [numbered(each) for each in tree]
    return {key: numbered(each) for key, each in tree.items()} if isinstance(tree, dict) else tree


def lettered(tree: Any) -> Any:
    """The inverse of ``numbered``."""
    if isinstance(tree, float) and not math.isfinite(tree):
        return f"\0number {tree}"
    if isinstance(tree, bytes):
        return {"bytes": base64.b64encode(tree).decode()}
    if isinstance(tree, (list, tuple)):
        return [lettered(each) for each in tree]
    return {key: lettered(each) for key, each in tree.items()} if isinstance(tree, dict) else tree


def storable(value: Any) -> Any:
    """A value that SQLite can store: a list or a table becomes bytes that are not text."""
    value = numbered(value)
    return value if value is None or isinstance(value, (str, int, float)) else json.dumps(value).encode()


def bytes_of(tree: Any) -> Any:
    """A reply as it comes from a server: bytes, None, lists; and what the mutations made of them."""
    if isinstance(tree, list):
        return [bytes_of(each) for each in tree]
    if isinstance(tree, dict):
        return base64.b64decode(tree["bytes"]) if "bytes" in tree else b""
    return None if tree is None else str(numbered(tree)).encode(errors="replace")


def value(rng: random.Random, column: str) -> Any:
    """A value for a column."""
    kind = rng.random()
    if column == "policy" and kind < 0.5:
        return pick(rng, POLICIES)
    if column == "args" and kind < 0.6:
        return pick(rng, ARGS)
    if column == "state" and kind < 0.6:
        return pick(rng, STATES)
    if kind < 0.35:
        return pick(rng, EDGES)
    if kind < 0.6:
        return pick(rng, NUMBERS)
    if kind < 0.7:
        return pick(rng, NOT_FINITE)
    if kind < 0.9:
        return pick(rng, TEXTS)
    return pick(rng, (None, True, b"\xff\xfe", [], {"a": 1}, 2**70, "\ud800"[:0] + "x"))


class WorthTarget:
    """Rows, replies and events whose values are not what a node writes."""

    name = "values"
    what = "rows of a ledger, replies, events: values past the codec"
    limit_s = 3.0

    def __init__(self) -> None:
        self._trees = [msgspec.msgpack.decode(codec.encode(packet)) for packet in packets()]
        self._rows = {state: dict(zip(RUN_COLUMNS, row(state).values(), strict=True)) for state in STATES}

    def make(self, rng: random.Random) -> bytes:
        """One value, or a few, in an otherwise sound row, reply or packet."""
        kind = pick(rng, (PACKET, PACKET, PACKET, RUN, RUN, RUN, RUN, ATTEMPT, JOB, OPEN, CLAIMED, HASH))
        return json.dumps({"kind": kind, "values": lettered(getattr(self, f"_{kind.replace('-', '_')}")(rng))}).encode()

    def _packet(self, rng: random.Random) -> Any:
        tree = dict(pick(rng, self._trees))
        if rng.random() < 0.5:
            return distort(tree, rng)
        said = [dict(event) for event in tree["events"]]
        for _ in range(pick(rng, (1, 1, 2, 3))):  # a field of one event, of any kind of value
            event = pick(rng, said)
            field = pick(rng, FIELDS[event["type"]])
            if field == "action" and isinstance(event.get("action"), dict) and rng.random() < 0.8:
                inner = pick(rng, ("job", "run", "attempt", "fire_at", "scheduled", "digest", "args"))
                event["action"] = {**event["action"], inner: value(rng, inner)}
            else:
                event[field] = value(rng, field)
        return {**tree, "events": said}

    def _run(self, rng: random.Random) -> Any:
        fields = dict(pick(rng, list(self._rows.values())))
        fields["run"] = pick(rng, ("sales#1", "sales#2", "tick@2025-01-29T08:00:00Z", "gone#1"))
        for _ in range(pick(rng, (0, 1, 1, 1, 2, 3, 8))):
            column = pick(rng, RUN_COLUMNS)
            fields[column] = value(rng, column)
        return fields

    def _attempt(self, rng: random.Random) -> Any:
        fields = dict(
            zip(ATTEMPT_COLUMNS, ("sales#1", 0, 7, "n", "b.2", "lost", EPOCH, EPOCH, EPOCH, 1, "", "x"), strict=True)
        )
        column = pick(rng, ATTEMPT_COLUMNS)
        return {**fields, column: value(rng, column)}

    def _job(self, rng: random.Random) -> Any:
        made = JobRow(pick(rng, ("sales", "tick")), 7, EPOCH)
        fields = dict(zip(JOB_COLUMNS, made.values(), strict=True))
        column = pick(rng, JOB_COLUMNS[1:])
        return {**fields, column: value(rng, column)}

    def _open_reply(self, rng: random.Random) -> Any:
        made = self._rows[pick(rng, STATES)]
        columns = (
            "run",
            "job",
            "digest",
            "args",
            "scheduled",
            "fire_at",
            "state",
            "attempt",
            "token",
            "nonce",
            "node",
            "lease",
            "beat",
            "not_before",
            "until",
            "boot",
        )
        fields = [str(made[column]).encode() for column in columns]
        about = [b"sales", b"1738137600", b"0", b"0", b"7"]
        place = int(rng.random() * len(fields))
        if rng.random() < 0.6:
            fields[place] = text_of(value(rng, columns[place]))
        else:
            about[1 + int(rng.random() * 4)] = text_of(value(rng, ""))
        head = [b"1738137600000000 id -", b"open", str(EPOCH).encode(), b"0"]
        if rng.random() < 0.2:
            head[pick(rng, (0, 2, 3))] = text_of(value(rng, ""))
        return [*head, [about, [b"tick", b"bad", b"horizon: x"]], [fields]]

    def _claim_reply(self, rng: random.Random) -> Any:
        pairs = {
            b"token": b"1738137600000001",
            b"left_s": b"60",
            b"in_s": b"0",
            b"args": b"{}",
            b"attempt": b"0",
            b"by": b"b.2",
            b"state": b"received",
            b"until_token": b"7 3",
        }
        word = pick(
            rng, (b"granted", b"granted", b"held", b"lost", b"early", b"limited", b"finished", b"bad", b"recovering")
        )
        name = pick(rng, list(pairs))
        pairs[name] = text_of(value(rng, name.decode()))
        word = word if rng.random() < 0.95 else text_of(value(rng, ""))
        return [b"1738137600000000 id -", word, *[part for pair in pairs.items() for part in pair]]

    def _hash(self, rng: random.Random) -> Any:
        made = list(pick(rng, list(self._rows.values())).values())
        for _ in range(pick(rng, (1, 1, 2, 5))):
            place = int(rng.random() * len(made))
            made[place] = value(rng, RUN_COLUMNS[place])
        if rng.random() < 0.3:
            pairs = [
                (f"{pick(rng, (0, 1, 'x', '', 10**30))}:{pick(rng, ATTEMPT_COLUMNS)}", value(rng, "")) for _ in range(9)
            ]
            return [text_of(part) for pair in pairs for part in pair]
        return [None if each is None else text_of(each) for each in made]

    @asynccontextmanager
    async def world(self) -> AsyncIterator[Try]:
        """A new node."""
        with scratch() as directory:
            yield World(directory).attempt


def text_of(made: Any) -> bytes:
    """A value as a server keeps it."""
    return made if isinstance(made, bytes) else str(made).encode(errors="replace")


FIELDS = {event_type(event): type(event).__struct_fields__ for packet in packets() for event in packet.events}
