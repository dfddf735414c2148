"""The ledger service: every request is answered, an absent ledger gets a pause, and the log says which ledger it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
from support.small_cluster import asked_for

from coordd.core.breaker import CLOSED, FAILURES_MAX, HALF_OPEN, OPEN
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import Claim, ListOpen, Prune, Register
from coordd.core.ledger.runner_requests import Request
from coordd.core.ledger.words import OK, RECOVERING, UNAVAILABLE, AttemptNumber
from coordd.core.ready import LedgerRequest
from coordd.errors import FullError, UnavailableError
from coordd.services import ledger as module
from coordd.services.control.doctor import state_check
from coordd.services.ledger import LedgerService

DEADLINE_S = 20.0


class FakeLedger:
    """A ledger that answers or fails as the test says; it records the requests."""

    url = "fake://"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failure = ""
        self.fails_on: tuple[str, ...] = ()
        self.fails_with: type[UnavailableError] = UnavailableError
        self.answers: dict[str, Any] = {}
        self.hold: threading.Event | None = None

    def ask(self, request: Request[Any]) -> Any:
        op = request.op
        self.asked.append(op)
        if self.hold is not None:
            self.hold.wait(DEADLINE_S)
        if self.failure and (not self.fails_on or op in self.fails_on):
            raise self.fails_with(self.failure)
        return self.answers.get(op, Answer(OK))

    def run(self, run: str) -> None:
        self.asked.append("read")
        if self.failure and not self.fails_on:
            raise UnavailableError(self.failure)

    def prune(self, keep_s: float, limit: int = 1000) -> int:
        answer: Answer = self.ask(Prune(keep_s=keep_s, limit=limit))
        return answer.token

    def close(self) -> None:
        pass


class BatchLedger(FakeLedger):
    """A ledger that takes a batch in one round trip."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []

    def ask_all(self, batch: list[Any]) -> list[Any]:
        self.batches.append([request.op for request in batch])
        return [self.ask(request) for request in batch]


class LoopLedger(BatchLedger):
    """A ledger that trio's loop can ask once it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = False
        self.here: list[list[str]] = []
        self.bug = False

    def ask(self, request: Request[Any]) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        self.is_open = True
        return super().ask(request)

    async def ask_here(self, batch: list[Any]) -> list[Any]:
        self.here.append([request.op for request in batch])
        await trio.lowlevel.checkpoint()
        if self.bug:
            raise ValueError("a bug of ours")
        if self.failure:
            self.is_open = False
            raise UnavailableError(self.failure)
        return [self.answers.get(request.op, Answer(OK)) for request in batch]


def service_of(ledger: Any) -> LedgerService:
    """The service of a fake ledger."""
    return LedgerService(lambda: ledger, 0.1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(module, "boottime", lambda: now[0])
    return now


OF = asked_for("sales#1")
ASKED: dict[str, Request[Any]] = {
    "open": ListOpen(),
    "register": Register(of=OF),
    "claim": Claim(of=OF, attempt=AttemptNumber(0), nonce="n", node="a.1", lease_s=60.0),
}


def requests(*ops: str) -> list[LedgerRequest]:
    return [LedgerRequest(number, ASKED[op]) for number, op in enumerate(ops, 1)]


def ask(service: LedgerService, *ops: str) -> list[str]:
    """The words of the answers, in the order of the questions."""

    async def main() -> list[str]:
        with trio.fail_after(DEADLINE_S):
            results = await service._ask(requests(*ops))
        assert [ident for ident, _, _ in results] == list(range(1, len(ops) + 1))
        return [answer.word for _, answer, _ in results]

    return trio.run(main)


def query(service: LedgerService, call: Callable[[Any], Any]) -> Any:
    return trio.run(service.query, call)


def trip(service: LedgerService, ledger: FakeLedger) -> None:
    ledger.failure = "no answer"
    for _ in range(FAILURES_MAX):
        ask(service, "claim")
    assert service.breaker.state == OPEN


@pytest.mark.usefixtures("clock")
def test_while_it_is_open_nobody_is_asked_and_everybody_answered() -> None:
    ledger = FakeLedger()
    service = service_of(ledger)
    trip(service, ledger)
    ledger.asked.clear()

    assert ask(service, "open", "claim", "claim") == [UNAVAILABLE] * 3

    assert ledger.asked == []
    assert (service.state, service.error) == ("unavailable", "no answer")


@pytest.mark.usefixtures("clock")
def test_a_failure_costs_one_question_a_batch() -> None:
    ledger = FakeLedger()
    ledger.failure = "no answer"
    service = service_of(ledger)

    assert ask(service, "claim", "claim", "claim") == [UNAVAILABLE] * 3

    assert ledger.asked == ["claim"]
    assert service.breaker.failures == 1


def test_at_half_open_one_question_is_the_probe(clock: list[float]) -> None:
    ledger = FakeLedger()
    service = service_of(ledger)
    trip(service, ledger)
    ledger.asked.clear()
    clock[0] = service.breaker.retry_at

    assert ask(service, "claim", "claim", "claim") == [UNAVAILABLE] * 3
    assert ledger.asked == ["claim"]
    assert service.breaker.state == OPEN

    ledger.failure = ""
    clock[0] = service.breaker.retry_at
    assert ask(service, "claim", "open", "claim") == [OK] * 3
    assert (service.breaker.state, service.state, service.error) == (CLOSED, "connected", "")


def test_the_probe_goes_alone_also_where_a_batch_is_one_round_trip(clock: list[float]) -> None:
    ledger = BatchLedger()
    service = service_of(ledger)
    trip(service, ledger)
    clock[0] = service.breaker.retry_at

    assert ask(service, "claim", "claim", "claim") == [UNAVAILABLE] * 3

    assert ledger.batches == []


@pytest.mark.usefixtures("clock")
def test_a_person_need_not_wait_for_the_cool_down() -> None:
    ledger = FakeLedger()
    service = service_of(ledger)
    trip(service, ledger)
    ledger.failure = ""

    service.reset()

    assert ask(service, "claim") == [OK]
    assert service.state == "connected"


def test_a_ledger_that_is_locked_is_not_back_because_it_can_be_read(clock: list[float]) -> None:
    ledger = FakeLedger()
    ledger.fails_on = ("claim", "prune")
    service = service_of(ledger)
    trip(service, ledger)

    clock[0] = service.breaker.retry_at
    ask(service, "open")

    assert (service.state, service.breaker.state) == ("unavailable", OPEN)
    assert query(service, lambda one: one.run("sales#1")) is None  # people may still look


@pytest.mark.parametrize("others", [("open",), ("open", "open"), ("claim",), ("open", "claim")])
def test_a_full_ledger_is_not_back_because_it_does_what_needs_no_memory(others: tuple[str, ...]) -> None:
    ledger = FakeLedger()
    ledger.failure, ledger.fails_on, ledger.fails_with = "memory is full", ("register", "prune"), FullError
    service = service_of(ledger)
    for _ in range(2 * FAILURES_MAX):
        assert ask(service, "register") == [UNAVAILABLE]
        assert ask(service, *others) == [OK] * len(others)
        assert (service.state, service.error, service.breaker.state) == ("unavailable", "memory is full", "closed")

    ledger.failure = ""
    ask(service, "open")
    assert (service.state, service.error) == ("connected", "")


def test_a_stuck_thread_is_left_behind_and_counts_as_a_failure() -> None:
    ledger, fresh = FakeLedger(), FakeLedger()
    ledger.hold = threading.Event()
    opened: Iterator[Any] = iter([ledger, fresh])
    service = LedgerService(lambda: next(opened), 0.01)

    assert ask(service, "claim") == [UNAVAILABLE]
    assert (service.state, service.error, service.breaker.failures) == ("unavailable", "no answer in time", 1)
    assert ask(service, "claim") == [OK]

    ledger.hold.set()
    assert fresh.asked[0] == "claim"


@pytest.mark.usefixtures("clock")
def test_people_wait_in_vain_once_and_not_each() -> None:
    ledger = FakeLedger()
    service = service_of(ledger)
    trip(service, ledger)
    ledger.asked.clear()

    for _ in range(5):
        with pytest.raises(UnavailableError, match="no answer"):
            query(service, lambda one: one.run("sales#1"))

    assert ledger.asked == ["read"]


def test_a_viewer_whose_question_takes_long_holds_up_no_operator_and_no_driver() -> None:
    """Who only looks has a connection, and a thread, of its own."""
    opened: list[FakeLedger] = []
    hold, begun, order = threading.Event(), threading.Event(), []

    def opens() -> Any:
        opened.append(FakeLedger())
        return opened[-1]

    def slow(_: Any) -> str:
        begun.set()
        hold.wait(DEADLINE_S)
        return "viewer"

    service = LedgerService(opens, DEADLINE_S)

    async def looks() -> None:
        module.ONLY_LOOKS.set(True)
        order.append(await service.query(slow))

    async def main() -> None:
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(looks)
                await trio.to_thread.run_sync(begun.wait)
                order.append(await service.query(lambda _: "operator"))
                order.append((await service.write(ASKED["register"])).word)
                order.append(await service.query(lambda _: "driver", whose=module.DRIVERS))
                hold.set()

    trio.run(main)
    assert order == ["operator", OK, "driver", "viewer"]
    assert len(opened) == 3


@pytest.mark.usefixtures("clock")
def test_a_batch_is_one_round_trip_where_the_ledger_can() -> None:
    ledger = BatchLedger()
    service = service_of(ledger)

    assert ask(service, "open", "claim", "register") == [OK] * 3

    assert ledger.batches == [["open", "claim", "register"]]
    ledger.failure = "no answer"
    assert ask(service, "open", "claim") == [UNAVAILABLE] * 2


def test_the_loop_asks_claims_itself_once_a_thread_has_opened_the_ledger() -> None:
    ledger = LoopLedger()
    service = service_of(ledger)
    times: list[str] = []
    service.timed = lambda op, _seconds: times.append(op)

    assert ask(service, "claim", "register") == [OK] * 2
    assert (ledger.here, ledger.batches) == ([], [["claim", "register"]])
    assert ask(service, "claim", "register") == [OK] * 2
    assert ask(service, "claim") == [OK]
    assert ledger.here == [["claim", "register"], ["claim"]]
    assert times == ["claim", "register", "claim", "register", "claim"]


def test_a_sweep_never_holds_up_the_loop_nor_a_claim_behind_it() -> None:
    ledger = LoopLedger()
    service = service_of(ledger)
    ask(service, "claim")

    assert ask(service, "open", "claim") == [OK] * 2

    assert ledger.here == []
    assert ledger.batches == [["open", "claim"]]


def test_what_fails_on_the_loop_is_a_failure_and_a_thread_probes(clock: list[float]) -> None:
    ledger = LoopLedger()
    service = service_of(ledger)
    ask(service, "claim")
    ledger.failure = "no answer"

    assert ask(service, "claim", "claim") == [UNAVAILABLE] * 2
    assert (service.state, service.error, service.breaker.failures) == ("unavailable", "no answer", 1)
    trip(service, ledger)
    assert len(ledger.here) == 1
    ledger.failure, clock[0] = "", service.breaker.retry_at
    ledger.asked.clear()

    assert ask(service, "claim") == [OK]
    assert ledger.asked[0] == "claim"  # the probe
    assert ask(service, "claim") == [OK]
    assert len(ledger.here) == 2


def test_a_request_that_cannot_be_sent_from_the_loop_is_asked_alone() -> None:
    ledger = LoopLedger()
    service = service_of(ledger)
    ask(service, "claim")
    ledger.bug = True
    ledger.asked.clear()

    assert ask(service, "claim", "register") == [OK] * 2

    assert ledger.asked == ["claim", "register"]


def test_a_ledger_that_went_back_is_shown_until_it_says_that_it_is_over(clock: list[float]) -> None:
    ledger = FakeLedger()
    ledger.answers["claim"] = Answer(RECOVERING, left_s=40.0)
    service = service_of(ledger)

    ask(service, "claim")
    clock[0] += 10.0
    assert (service.state, service.recovering_s) == ("recovering", 30.0)

    ledger.answers["open"] = OpenAnswer([], {}, 0.0)
    ask(service, "open")
    assert (service.state, service.recovering_s) == ("connected", 0.0)


def test_the_state_of_a_recovering_ledger_that_goes_away_is_that_it_is_away(clock: list[float]) -> None:
    ledger = FakeLedger()
    ledger.answers["claim"] = Answer(RECOVERING, left_s=40.0)
    service = service_of(ledger)
    ask(service, "claim")

    trip(service, ledger)

    assert service.state == "unavailable"
    clock[0] = service.breaker.retry_at
    assert service.breaker.allow(clock[0])
    assert service.breaker.state == HALF_OPEN


@pytest.mark.usefixtures("clock")
def test_doctor_says_that_a_ledger_refuses_what_this_node_asks() -> None:
    ledger = FakeLedger()
    service = service_of(ledger)
    ask(service, "open")
    assert state_check(service)["state"] == "ok"

    ledger.failure, ledger.fails_on, ledger.fails_with = "its memory is full", ("register", "prune"), FullError
    ask(service, "register")
    ask(service, "open")
    assert (state_check(service)["state"], state_check(service)["text"]) == ("fail", "its memory is full")

    ledger.failure = ""
    ledger.answers["open"] = OpenAnswer([], {}, 0.0, 40.0)
    ask(service, "open")
    assert state_check(service)["state"] == "warn"
    assert "40 s" in state_check(service)["text"]

    ledger.failure, ledger.fails_on, ledger.fails_with = "it is a replica", ("open",), UnavailableError
    ask(service, "open")
    assert (state_check(service)["state"], state_check(service)["text"]) == ("fail", "it is a replica")
