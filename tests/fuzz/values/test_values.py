"""The templates are what the code writes today, most inputs come past the codec, and the outcome tells which."""

from __future__ import annotations

import json
import random
import typing
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from support.small_cluster import EPOCH

from coordd.adapters.ledger import redis_rows
from coordd.adapters.ledger.redis_ledger import answer_of
from coordd.adapters.ledger.redis_rows import attempts_of, row_of
from coordd.core.ledger.backfill.plan import Plan
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.rerun.plan import Item, Runs, read, text_of
from coordd.core.ledger.rows import ATTEMPT_COLUMNS, JOB_COLUMNS, RUN_COLUMNS, STANDING_COLUMNS, AttemptRow, JobRow, Row
from coordd.core.ledger.sound import attempt_fault, job_fault, run_fault, standing_fault
from coordd.core.ledger.words import BAD, GRANTED, HELD, LIMITED, LOST, RECOVERING
from coordd.core.wire.events import AnyEvent, Candidacy, PeerSummary, RunOutcome, WorkerHelloReply
from coordd.errors import UnavailableError
from fuzz import bus, run
from fuzz.values import world
from fuzz.values.dialogue import recorded
from fuzz.values.spoil import bytes_of, lettered
from fuzz.values.tables import UNCHECKED, written
from fuzz.values.world import ATTEMPTS, CLAIMED, HASH, OPEN, PACKET, REFUSED, TAKEN, TOLD
from fuzz.values.worth import WorthTarget

SEED = 0

# Of the inputs of each kind at least this part has to come past the codec: otherwise the fuzzer looks at the codec.
SHARE_MIN = {PACKET: 0.4, OPEN: 0.7, CLAIMED: 0.55}


def the_target() -> WorthTarget:
    target = run.target_of("values")
    assert isinstance(target, WorthTarget)
    return target


def test_every_event_of_the_wire_is_sent() -> None:
    sent = {type(event) for packet in bus.packets() for event in packet.events}

    assert set(typing.get_args(AnyEvent)) - sent == set(), "an event in no packet is never spoilt: add it to packets()"


def test_what_stands_inside_events_is_sent() -> None:
    """Each field that holds other structs has one."""
    told = [event for packet in bus.packets() for event in packet.events]
    inner = {kind for event in told for kind in inside(msgspec.structs.asdict(event))}

    assert inner >= {Candidacy, PeerSummary, RunOutcome}
    assert any(event.outcomes for event in told if isinstance(event, WorkerHelloReply))


def inside(part: Any) -> set[type]:
    if isinstance(part, msgspec.Struct):
        return {type(part)} | inside(msgspec.structs.asdict(part))
    if isinstance(part, dict):
        part = list(part.values())
    return set().union(*[inside(each) for each in part]) if isinstance(part, (list, tuple)) else set()


def test_every_recorded_reply_is_read() -> None:
    kept = recorded()
    sweeps = [answer_of(reply) for reply in kept.opened]
    claims = [answer_of(reply) for reply in kept.claimed]

    assert all(isinstance(answer, OpenAnswer) for answer in sweeps)
    assert {answer.word for answer in claims} >= {GRANTED, HELD, LOST, LIMITED, BAD, RECOVERING}
    for part in ("runs", "jobs", "current", "holds", "gone", "bad", "after", "more", "recovering_s"):
        assert any(getattr(answer, part) for answer in sweeps), f"no recorded sweep has {part}"
    assert any(answer.ended is not None for answer in claims if not isinstance(answer, OpenAnswer))


def test_the_recorded_hashes_are_sound() -> None:
    kept = recorded()

    assert {run_fault(row) for values in kept.rows if (row := row_of(values))} == {""}
    assert {attempt_fault(one) for flat in kept.attempts for one in attempts_of(flat)} == {""}


def test_every_table_has_sound_rows() -> None:
    rows = written()

    assert [table for table, found in rows.items() if not found] == [], "no dialogue writes a row there: add to speak()"
    checks: dict[str, list[str]] = {
        "runs": [run_fault(Row([one[name] for name in RUN_COLUMNS])) for one in rows["runs"]],
        "attempts": [attempt_fault(AttemptRow([one[name] for name in ATTEMPT_COLUMNS])) for one in rows["attempts"]],
        "jobs": [job_fault(JobRow(*[one[name] for name in JOB_COLUMNS])) for one in rows["jobs"]],
        "standing": [
            standing_fault(JobRow.of_standing([one[name] for name in STANDING_COLUMNS])) for one in rows["standing"]
        ],
    }
    assert {table: set(faults) for table, faults in checks.items()} == {table: {""} for table in checks}
    assert rows.keys() - checks.keys() == UNCHECKED


def test_every_kind_is_made() -> None:
    target = the_target()
    made = Counter(json.loads(data)["kind"] for data in run.inputs_of("values", SEED, 1, 3000))

    assert made.keys() == {*written(), PACKET, OPEN, CLAIMED, HASH, ATTEMPTS} == target.makers.keys()
    assert min(made.values()) > 30


@pytest.mark.parametrize("kind", [OPEN, CLAIMED])
def test_most_spoilt_replies_are_read(kind: str) -> None:
    assert read_share(kind) > SHARE_MIN[kind]


def test_a_template_that_has_rotted_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a column was added to the answer of the script, and not to the templates."""
    monkeypatch.setattr(redis_rows, "OPEN_COLUMNS", (*redis_rows.OPEN_COLUMNS, "another"))

    assert read_share(OPEN) < SHARE_MIN[OPEN]


def read_share(kind: str) -> float:
    """The part of the spoilt replies that the codec takes."""
    rng = random.Random(SEED)
    target = the_target()
    taken = 0
    for _ in range(500):
        try:
            answer_of(bytes_of(json.loads(target.make_one(kind, rng))["values"]))
            taken += 1
        except UnavailableError:
            pass
    return taken / 500


@pytest.fixture(scope="module")
def worlds() -> list[world.World]:
    """The world of the inputs of ``outcomes``."""
    return []


@pytest.fixture(scope="module")
def outcomes(worlds: list[world.World]) -> dict[str, Counter[str]]:
    """Of each kind of input, what became of it in a world."""
    rng = random.Random(SEED)
    target = the_target()
    found: dict[str, Counter[str]] = {}
    begin = world.World.__init__

    def remembered(self: world.World, directory: str) -> None:
        begin(self, directory)
        worlds.append(self)

    inputs = [target.make_one(kind, rng) for kind in target.makers for _ in range(40)]
    result = run.Result()
    with pytest.MonkeyPatch.context() as patch, run._quiet():
        patch.setattr(world.World, "__init__", remembered)
        tried, failure = run._run_until_failure("values", inputs, result)
    assert failure is None, failure.told
    assert tried == len(inputs)
    for outcome, count in result.outcomes.items():
        word, _, kind = outcome.partition(": ")
        found.setdefault(kind, Counter())[word] += count
    return found


def test_the_outcome_tells_what_was_refused_by_the_codec(outcomes: dict[str, Counter[str]]) -> None:
    for kind, share in SHARE_MIN.items():
        of = outcomes[kind]
        assert of[TAKEN] / of.total() > share, (kind, of)
    assert outcomes[OPEN][REFUSED] > 0
    assert outcomes[CLAIMED][REFUSED] > 0
    assert outcomes[PACKET][REFUSED] > 0


def test_a_node_reads_the_rows_of_every_table(outcomes: dict[str, Counter[str]]) -> None:
    for table in written():
        of = outcomes[table]
        assert (of[TAKEN] + of[TOLD]) / of.total() > 0.7, (table, of)
    for table in ("runs", "jobs", "standing"):
        assert outcomes[table][TOLD] > 0, f"a node names bad rows of {table}"


def test_a_node_asks_claims_and_launches(outcomes: dict[str, Counter[str]], worlds: list[world.World]) -> None:
    [one] = worlds

    assert outcomes
    assert one.asked["open"] > 100
    assert one.asked["claim"] > 100
    assert one.launcher.started > 50, "no runner starts: the world lacks something that a launch needs"
    assert one.peers_heard > 0


# ---- what a node could not bear once


def spoken(word: bytes, **fields: Any) -> list[Any]:
    """A reply to a claim."""
    return [recorded().claimed[0][0], word, *[part for name, said in fields.items() for part in (name.encode(), said)]]


def swept_with(at: int, part: Any) -> list[Any]:
    """A sweep's reply with another part."""
    reply = list(recorded().opened[0])
    reply[at] = part
    return reply


ENDED = [b"0", b"0", b"", b"b.2", b"", b"d1", b"relaunch forbid 1 5 30.0 fixed 3600.0", b"60"]
HARMFUL: dict[str, tuple[str, Callable[[], Any]]] = {
    "a claim is answered as no rule does": (CLAIMED, lambda: spoken(b"exists", state=b"pending")),
    "an attempt that no row can have": (CLAIMED, lambda: spoken(b"lost", attempt=b"1000001", in_s=b"0")),
    "an end of such an attempt": (CLAIMED, lambda: spoken(b"finished", state=b"lost", ended=[b"1000001", *ENDED[1:]])),
    "an end with a lease below 0": (CLAIMED, lambda: spoken(b"finished", state=b"lost", ended=[*ENDED[:-1], b"-1"])),
    "an end on a node with a long name": (
        CLAIMED,
        lambda: spoken(b"finished", state=b"lost", ended=[*ENDED[:3], b"x" * 2000, *ENDED[4:]]),
    ),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_node_bears(name: str) -> None:
    kind, made = HARMFUL[name]
    data = json.dumps({"kind": kind, "values": lettered(made())}).encode()
    failure = run.replay("values", [data])
    assert failure is None, failure.told


def test_an_identity_that_no_peer_can_read_is_refused() -> None:
    """Each heartbeat tells it: one that is too long is dropped by all peers, with the whole event."""
    with pytest.raises(UnavailableError):
        answer_of(swept_with(0, b"1738137600000000 " + b"x" * 2000 + b"  0"))


def test_a_rerun_of_too_many_runs_is_none() -> None:
    note = text_of([Item(Runs("tick#9"), "success", any=False, parents=((Runs("sales#1", 10**15),),))])

    assert read(note) == [], "a node would list them all, until it has no memory left"


def test_a_backfill_of_no_dates_is_none() -> None:
    """A node that asks for its first fire time ends with "year 285428751 is out of range", and so do all others."""
    assert Plan.read(Plan("p1", 2.0**53, EPOCH).text()) is None
