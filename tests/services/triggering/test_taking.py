"""Taking arrivals: once each, as far as there is room, and nothing while the job may not start."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
from support.small_cluster import EPOCH, job

from coordd.core.jobs.job import Breaker, Dedupe, Job
from coordd.core.jobs.trigger import Trigger
from coordd.core.ledger.breaker.text import HALF_OPEN, OPEN, State
from coordd.core.ledger.rows import OF_BREAKER, OF_ISOLATED, Hold
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ready import Now, Reply
from coordd.core.triggers.arrivals import Arrival, run_of
from coordd.errors import UnavailableError
from coordd.services.triggering import rooms, taking as module
from coordd.services.triggering.taking import Taker

DROP = Trigger(kind="file", name="drop", args={"file": "{trigger.key}"}, max_open=3)


class Machine:
    """A node and its ledger, as far as a taker sees them."""

    def __init__(self, trigger: Trigger = DROP, of: Dedupe | None = None) -> None:
        """``of``: the job's `dedupe`."""
        self.rows: dict[str, str] = {}  # run -> state
        self.down = False
        self.refuses = ""
        self.durable = "ledger"
        self.triggered: list[Registration] = []
        self.counted = 0  # how often open runs were counted
        self.mono = 1.0
        made = job("j", triggers=(trigger,), params={"file": ""}, overlap="allow", dedupe=of)
        self.node = SimpleNamespace(
            jobs={"j": made},
            hostname="a",
            concurrency={},
            drains=SimpleNamespace(pause=None, suspended=frozenset(), holds={}),
            heard=SimpleNamespace(life="1"),
            skew_s=lambda now: 0.0,
        )
        self.marks: dict[str, Hold] = {}  # what the ledger keeps
        this: Any = self
        self.taker = Taker("j", trigger, this, this)

    def now(self) -> Now:
        return Now(self.mono, EPOCH)

    async def query(self, call: Any) -> Any:
        if self.down:
            raise UnavailableError("no ledger")
        return call(self)

    def recorded(self, runs: list[str]) -> set[str]:
        return self.rows.keys() & runs

    def runs(self, *, job: str, state: str, limit: int) -> list[str]:
        self.counted += state == "pending"
        return [run for run, said in self.rows.items() if said == state][:limit]

    def mark(self, key: str) -> Hold | None:
        return self.marks.get(key)

    async def trigger(self, of: Registration) -> Reply:
        await trio.lowlevel.checkpoint()
        self.triggered.append(of)
        if self.refuses:
            return Reply(1, {}, self.refuses, "no")
        self.rows.setdefault(of.run, "pending")
        return Reply(1, {"id": of.run, "durable": self.durable})

    def take(self, *keys: str) -> bool:
        return trio.run(self.taker.take, [Arrival(key, {"key": key}) for key in keys])

    @property
    def taken(self) -> set[str]:
        return {of.run for of in self.triggered}

    def waiting(self) -> list[str]:
        return [one.key for one in self.taker.waiting]


def runs(*keys: str) -> set[str]:
    return {run_of("j", "drop", key) for key in keys}


def test_arrivals_are_taken_while_there_is_room_and_the_others_wait() -> None:
    machine = Machine()
    machine.take("a", "b", "c", "d", "e")
    assert machine.taken == runs("a", "b", "c")
    assert machine.waiting() == ["d", "e"]

    machine.take("a", "b", "c", "d", "e")
    assert len(machine.triggered) == 3
    machine.rows[run_of("j", "drop", "b")] = "success"
    machine.take("a", "b", "c", "d", "e")
    assert machine.taken == runs("a", "b", "c", "d")
    assert machine.taker.counts == {"taken": 4, "refused": 0}
    assert [of.args for of in machine.triggered][3] == '{"file": "d"}'


def test_open_runs_are_counted_when_no_room_is_left_or_after_a_while() -> None:
    machine = Machine()
    machine.take("a")
    machine.take("a", "b")
    assert machine.counted == 1
    machine.rows["j#another"] = "pending"
    machine.mono += 2 * rooms.COUNTED_S
    machine.take("a", "b", "c")
    assert (machine.counted, machine.taken) == (2, runs("a", "b"))
    machine.rows.pop("j#another")
    machine.take("a", "b", "c")
    assert (machine.counted, machine.taken) == (3, runs("a", "b", "c"))


def test_a_source_that_tells_what_is_gone_hands_over_only_what_is_new() -> None:
    machine = Machine()
    taker = machine.taker
    machine.take("a", "b")
    assert ("a" in taker.known, "c" in taker.known, taker.known.every) == (True, False, {"a", "b"})
    trio.run(partial(taker.take, [Arrival("c", {"key": "c"})], gone=frozenset("a")))
    assert (machine.taken, taker.recorded, taker.known.every) == (runs("a", "b", "c"), {"b", "c"}, {"b", "c"})
    trio.run(partial(taker.take, [], gone=frozenset()))
    assert taker.recorded == {"b", "c"}, "arrivals that are not handed over are still there"


def test_what_can_start_no_run_is_refused_once_and_named_until_it_is_gone() -> None:
    machine = Machine()
    taker = machine.taker
    big = Arrival("x" * 5000, {"key": "x" * 5000})
    trio.run(taker.take, [big])
    assert (list(taker.refused), taker.counts["refused"], big.key in taker.known) == ([big.shown], 1, True)
    trio.run(partial(taker.take, [], gone=frozenset()))
    assert (list(taker.refused), taker.counts["refused"]) == ([big.shown], 1)
    trio.run(partial(taker.take, [], gone=frozenset((big.key,))))
    assert (taker.refused, taker.impossible) == ({}, {})


def test_what_another_node_took_is_not_taken_again() -> None:
    machine = Machine()
    machine.rows = dict.fromkeys(runs("a", "b"), "success")
    machine.take("a", "b", "c")
    assert machine.taken == runs("c")


def test_what_a_ledger_that_went_back_has_forgotten_gets_its_row_again() -> None:
    machine = Machine()
    machine.take("a", "b")
    machine.rows.pop(run_of("j", "drop", "b"))
    machine.take("a", "b")
    assert len(machine.triggered) == 2, "nothing says that the ledger has changed"
    machine.node.heard.life = "2"
    machine.take("a", "b")
    assert machine.rows.keys() == runs("a", "b")
    assert len(machine.triggered) == 3


@pytest.mark.parametrize("how", ["suspended", "paused", "held", "gone"])
def test_nothing_is_taken_while_the_job_may_not_start(how: str) -> None:
    machine = Machine()
    if how == "suspended":
        machine.node.drains.suspended = frozenset(("j",))
    elif how == "paused":
        machine.node.drains.pause = object()
    else:
        machine.node.jobs = {"j": job("j", enabled=False)} if how == "held" else {}
    machine.take("a", "b")
    assert (machine.triggered, machine.waiting()) == ([], ["a", "b"])


def kept(state: str = OPEN, *, retry_in_s: float = 60.0) -> Hold:
    """A breaker as the ledger keeps it."""
    of = State()
    of.state, of.since, of.retry_at = state, EPOCH - 5.0, EPOCH + retry_in_s
    return Hold(by="", at=EPOCH, note=of.text())


def with_breaker(of: Job, *, enforce: bool = True) -> Job:
    return msgspec.structs.replace(of, breaker=Breaker(enforce=enforce))


def broken(breaker: Hold | None = None, isolated: Hold | None = None, *, enforce: bool = True) -> Machine:
    """A machine whose node and ledger know of these holds on its job."""
    machine = Machine()
    machine.node.jobs = {"j": with_breaker(machine.node.jobs["j"], enforce=enforce)}
    holds = {OF_BREAKER + "j": breaker, OF_ISOLATED + "j": isolated}
    machine.marks = {key: hold for key, hold in holds.items() if hold is not None}
    machine.node.drains.holds = dict(machine.marks)
    return machine


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("by", ["breaker", "isolated"])
def test_arrivals_wait_while_the_breaker_is_open_as_the_node_or_the_ledger_knows(by: str, known: bool) -> None:
    machine = broken(kept()) if by == "breaker" else broken(isolated=Hold(by="ann", at=EPOCH))
    if not known:
        machine.node.drains.holds = {}
    machine.take("a", "b")
    assert (machine.triggered, machine.waiting()) == ([], ["a", "b"])
    machine.node.drains.holds = machine.marks = {}
    machine.take("a", "b")
    assert machine.taken == runs("a", "b")


@pytest.mark.parametrize("state", [OPEN, HALF_OPEN])
def test_one_arrival_at_a_time_tries_whether_the_job_works_again(state: str) -> None:
    machine = broken(kept(state, retry_in_s=-60.0))
    machine.take("a", "b", "c")
    machine.take("a", "b", "c")
    assert (machine.taken, machine.waiting()) == (runs("a"), ["b", "c"])
    machine.rows[run_of("j", "drop", "a")] = "success"
    machine.marks = {}
    machine.take("a", "b", "c")
    assert machine.taken == runs("a", "b", "c")


@pytest.mark.parametrize("how", ["watches", "ended"])
def test_a_breaker_that_stops_nothing_lets_arrivals_through(how: str) -> None:
    over = Hold(by="ann", at=EPOCH - 9.0, until=EPOCH - 1.0)
    machine = broken(kept(), enforce=False) if how == "watches" else broken(isolated=over)
    machine.take("a", "b")
    assert machine.taken == runs("a", "b")


def test_triggers_of_one_job_share_its_room() -> None:
    machine = Machine(msgspec.structs.replace(DROP, max_open=1))
    of: Any = machine
    more = msgspec.structs.replace(DROP, name="more", max_open=1)
    machine.node.jobs = {"j": msgspec.structs.replace(machine.node.jobs["j"], triggers=(DROP, more))}
    shared = rooms.Rooms(of, of)
    takers = [Taker("j", one, of, of, shared) for one in (machine.taker.trigger, more)]

    async def take() -> None:
        async with trio.open_nursery() as nursery:
            for taker in takers:
                nursery.start_soon(taker.take, [Arrival("a", {"key": "a"})])

    trio.run(take)
    assert len(machine.triggered) == 1
    assert sorted(len(taker.waiting) for taker in takers) == [0, 1]
    machine.rows = dict.fromkeys(machine.rows, "success")
    trio.run(take)
    assert len(machine.taken) == 2


def test_nothing_is_lost_while_the_ledger_is_away_or_takes_nothing() -> None:
    machine = Machine()
    machine.down = True
    with pytest.raises(UnavailableError):
        machine.take("a")
    machine.down, machine.refuses = False, "try_later"
    machine.take("a")
    assert machine.waiting() == ["a"]
    machine.refuses = ""
    machine.take("a")
    assert machine.rows == dict.fromkeys(runs("a"), "pending")


def test_an_arrival_that_was_taken_under_an_earlier_definition_is_taken() -> None:
    machine = Machine()
    machine.refuses = "conflict"
    machine.take("a")
    assert machine.waiting() == []
    assert machine.taker.counts["taken"] == 0


def test_an_arrival_that_can_start_nothing_is_shown_and_does_not_stand_in_the_way() -> None:
    machine = Machine()
    bad = "x" * 5000
    machine.take(bad, "a", "b", "c")
    machine.take(bad, "a", "b", "c")
    assert machine.taken == runs("a", "b", "c")
    assert list(machine.taker.refused) == [bad]
    assert machine.taker.counts["refused"] == 1
    machine.take("a", "b", "c")
    assert machine.taker.refused == {}


def test_what_could_start_nothing_is_looked_at_again_when_its_values_differ() -> None:
    machine = Machine(msgspec.structs.replace(DROP, args={"file": "{trigger.body.path}"}))

    def take(**values: str) -> None:
        trio.run(machine.taker.take, [Arrival("7", {"key": "7", **values})])

    take()
    take()
    assert (machine.taken, list(machine.taker.refused), machine.taker.counts["refused"]) == (set(), ["7"], 1)
    take(**{"body.path": "/in/a"})
    assert (machine.taken, machine.taker.refused, machine.taker.impossible) == (runs("7"), {}, {})


def test_one_look_takes_a_bounded_number_and_says_that_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAKEN_MAX", 2)
    machine = Machine()
    assert machine.take("a", "b", "c")
    assert machine.taken == runs("a", "b")
    assert not machine.take("a", "b", "c")
    assert machine.taken == runs("a", "b", "c")


@pytest.mark.parametrize(("durable", "recorded"), [("node", set()), ("ledger", {"a"})])
def test_a_key_that_only_this_node_knows_is_not_in_the_ledger_yet(
    monkeypatch: pytest.MonkeyPatch, durable: str, recorded: set[str]
) -> None:
    machine = Machine(of=Dedupe("{file}"))

    async def trigger(_: Registration) -> Reply:
        return Reply(1, {"durable": durable}, "conflict", "it has other arguments")

    monkeypatch.setattr(machine, "trigger", trigger)
    machine.take("a")
    assert machine.taker.recorded == recorded
    assert machine.waiting() == []
