"""Who looks: one node for all of them, another one when it is gone; and what is told and done."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from msgspec import structs
from support.small_cluster import EPOCH, job

from coordd.core.checks.check import Check, Use
from coordd.core.checks.state import INSECURE, LOST_AFTER, Result, Standing, pack, unpack
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Keep, Suspend
from coordd.core.ledger.rows import OF_CHECK, OF_JOB, OF_REPORTED, Hold
from coordd.core.ledger.words import FINISHED, OK
from coordd.core.ready import Now
from coordd.errors import UnavailableError
from coordd.services.checks import service as module, view
from coordd.services.checks.service import KEPT_S, Checks
from coordd.services.ledger import CONNECTED

SHARED = Check(name="api", kind="http", url="http://h/", scope="cluster", every_s=10.0, fail_after=1, pass_after=1)


class Place:
    """The ledger that nodes share, their clock, and elections: the first that stands wins."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mono = 1000.0
        self.holds: dict[str, Hold] = {}
        self.won: dict[str, str] = {}
        self.down = False
        self.dies = False  # the node that resumes a job
        self.state = CONNECTED
        self.meanwhile: Any = lambda: None  # what happens before a job is suspended or resumed
        self.suspensions: list[tuple[str, bool, str]] = []
        monkeypatch.setattr(module, "boottime", lambda: self.mono)

    @property
    def wall(self) -> float:
        return EPOCH + self.mono

    async def query(self, call: Any) -> Any:
        if self.down:
            raise UnavailableError("no ledger")
        return call(SimpleNamespace(ask=lambda _: SimpleNamespace(holds=dict(self.holds))))

    async def write(self, request: Any) -> Answer:
        if self.down:
            raise UnavailableError("no ledger")
        if isinstance(request, Suspend):
            if self.dies and not request.suspended:
                raise UnavailableError("it died")
            self.meanwhile()
            if request.given and not request.suspended:
                mine = self.holds.get(OF_JOB + request.job)
                if mine is None or mine.by != request.by or not self.is_as_given(request):
                    return Answer(FINISHED)
            self.suspensions.append((request.job, request.suspended, request.by))
            key, held = OF_JOB + request.job, request.suspended
        else:
            assert isinstance(request, Keep)
            if request.given and not self.is_as_given(request):
                return Answer(FINISHED)
            key, held = request.key, request.held
        if held:
            self.holds[key] = Hold(by=request.by, at=self.wall, until=request.until, note=request.note)
        else:
            self.holds.pop(key, None)
        return Answer(OK)

    def is_as_given(self, request: Keep | Suspend) -> bool:
        there = self.holds.get(request.given)
        return (there.note if there else "") == request.noted


class Machine:
    """One node, as far as checks see it."""

    def __init__(self, place: Place, name: str, *checks: Check, **jobs: Any) -> None:
        self.place = place
        self.sees = "healthy"
        self.told: list[Any] = []
        self.audited: list[str] = []
        self.let_go: list[Any] = []
        self.handlers: dict[str, Any] = {}
        self.node: Any = SimpleNamespace(
            hostname=name, full_hostname=f"{name}.1", state="ready", ledger="l", ledger_up=True, topics=set(),
            jobs=jobs, settings=SimpleNamespace(tags=("edge",)), stamp=itertools.count(1).__next__,
            drains=SimpleNamespace(holds=place.holds), abstains_from={}, open_election=self.stand,
            look_again=lambda _now: None, abstaining=SimpleNamespace(take=self.abstain),
        )  # fmt: skip
        this: Any = self
        ledger: Any = place
        self.checks = Checks({one.name: one for one in checks}, this, ledger)
        self.checks._look = self.look  # type: ignore[method-assign]  # what it sees is not the subject

    def now(self) -> Now:
        return Now(self.place.mono, self.place.wall)

    def feed(self, call: Any, *args: Any) -> Any:
        return call(*args, self.now())

    def tell(self, event: Any) -> None:
        self.told.append(event)

    def journal_control(self, method: str, subject: str, uid: int, by: str) -> None:
        self.audited.append(f"{method} {subject} by {by}")

    def abstain(self, reasons: Any, _now: Now) -> None:
        self.node.abstains_from = reasons

    def begins(self, call: Any, *args: Any) -> None:
        if call == self.checks._let_go:
            self.let_go.append(args)

    def stand(self, ident: str, topic: str, _action: None, _now: Now) -> None:
        if self.place.won.setdefault(ident, self.node.hostname) == self.node.hostname:
            self.checks._won(topic.partition("/")[2], None)  # type: ignore[arg-type]  # it is not used

    async def look(self, check: Check) -> Result:
        return Result(self.sees, f"{self.node.hostname} sees {self.sees}")

    def turn(self, check: Check = SHARED) -> float:
        return trio.run(self.checks._turn, check)

    def around(self) -> None:
        nursery: Any = SimpleNamespace(start_soon=self.begins)
        self.checks._look_around(nursery)


def by(place: Place) -> str:
    return place.holds[OF_CHECK + "api"].by


def test_one_node_looks_for_all_and_a_dead_one_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(monkeypatch)
    a, b = Machine(place, "a", SHARED), Machine(place, "b", SHARED)
    for _ in range(2):
        b.turn()
        a.turn()
    assert by(place) == "b"
    first = place.holds[OF_CHECK + "api"].at
    for _ in range(5):
        place.mono += 10.0
        assert b.turn() == SHARED.every_s
        assert a.turn() == 1.0, "it looks at the ledger only"
    assert place.holds[OF_CHECK + "api"].at == first + 50.0
    silent = 0.0
    while by(place) == "b":  # b is dead now
        place.mono += 1.0
        silent += 1.0
        a.turn()
        assert silent < 60.0
    assert silent > 2 * SHARED.every_s
    b.turn()
    assert by(place) == "a", "the one that comes back leaves it to the new one"
    assert [row.node for row in b.checks.rows()] == ["a"]


def test_a_node_that_takes_no_part_does_not_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(monkeypatch)
    a = Machine(place, "a", SHARED)
    for change in ({"state": "draining"}, {"ledger_up": False}, {"ledger": ""}):
        for name, value in {"state": "ready", "ledger_up": True, "ledger": "l", **change}.items():
            setattr(a.node, name, value)
        a.turn()
        a.turn()
    assert place.holds == {}


def test_a_job_is_suspended_once_and_resumed_and_a_person_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(monkeypatch)
    a = Machine(place, "a", SHARED, sales=job(uses=(Use("api", "suspend"),)), other=job("other"))
    a.turn()

    def seen(state: str) -> list[tuple[str, bool, str]]:
        place.mono += 10.0
        a.sees = state
        place.suspensions.clear()
        a.turn()
        return list(place.suspensions)

    assert seen("healthy") == []
    assert seen("unhealthy") == [("sales", True, "check api")]
    assert seen("unhealthy") == seen(INSECURE) == []
    del place.holds[OF_JOB + "sales"]  # a person resumes it: the check does not suspend it again
    assert seen("unhealthy") == seen("healthy") == []
    assert seen("unhealthy") == [("sales", True, "check api")]
    assert seen("healthy") == [("sales", False, "check api")]
    place.holds[OF_JOB + "sales"] = Hold(by="maria", at=place.wall)
    assert seen("unhealthy") == seen("healthy") == []
    assert a.audited[0] == 'job.suspend sales: check api is unhealthy ("a sees unhealthy") by check api'
    place.down = True
    with pytest.raises(UnavailableError):
        seen("unhealthy")
    place.down = False
    assert place.holds[OF_CHECK + "api"].by == "a"


def test_what_a_checker_left_undone_is_done_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It died after it had written that the check is good, and before it resumed the job."""
    place = Place(monkeypatch)
    sales = {"sales": job(uses=(Use("api", "suspend"),))}
    a, b = Machine(place, "a", SHARED, **sales), Machine(place, "b", SHARED, **sales)
    a.sees = "unhealthy"
    for _ in range(2):
        a.turn()
    assert OF_JOB + "sales" in place.holds
    a.sees, place.dies = "healthy", True
    with pytest.raises(UnavailableError):
        a.turn()
    assert unpack(place.holds[OF_CHECK + "api"].note).state == "healthy"
    assert OF_JOB + "sales" in place.holds
    place.dies = False
    b.turn()
    place.mono += 60.0
    for _ in range(2):
        b.turn()
    assert by(place) == "b"
    assert OF_JOB + "sales" not in place.holds


def test_a_checker_that_was_paused_does_not_resume_a_job_whose_check_is_bad_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has written that the check is good; another one finds it bad before the job is resumed."""
    place = Place(monkeypatch)
    sales = {"sales": job(uses=(Use("api", "suspend"),))}
    a, b = Machine(place, "a", SHARED, **sales), Machine(place, "b", SHARED, **sales)
    a.sees = "unhealthy"
    for _ in range(2):
        a.turn()
    bad = place.holds[OF_CHECK + "api"]

    def paused() -> None:
        place.holds[OF_CHECK + "api"] = Hold(by="b", at=place.wall, note=bad.note)

    a.sees, place.meanwhile = "healthy", paused
    a.turn()
    assert OF_JOB + "sales" in place.holds
    assert not [one for one in a.audited if one.startswith("job.resume")]
    place.meanwhile = lambda: None
    for _ in range(2):
        b.turn()
    assert OF_JOB + "sales" not in place.holds, "the one that looks now resumes it"


def test_a_checker_that_was_paused_resumes_nothing_while_the_next_one_finds_the_check_bad(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its resumption comes at each moment between what the next one reads and what it writes."""
    place = Place(monkeypatch)
    b = Machine(place, "b", SHARED, sales=job(uses=(Use("api", "suspend"),)))
    good = pack(Standing(state="healthy", at=place.wall - 20.0))
    place.holds[OF_CHECK + "api"] = Hold(by="b", at=place.wall, note=good)
    place.holds[OF_JOB + "sales"] = Hold(by="check api", at=place.wall)
    late = Suspend(job="sales", suspended=False, by="check api", given=OF_CHECK + "api", noted=good)
    write = place.write

    async def beside(request: Any) -> Answer:
        await write(late)
        return await write(request)

    monkeypatch.setattr(place, "write", beside)
    b.sees = "unhealthy"
    b.turn()
    assert unpack(place.holds[OF_CHECK + "api"].note).is_bad
    assert OF_JOB + "sales" in place.holds


def test_a_checker_that_was_paused_after_it_suspended_a_job_does_not_write_over_the_word_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the check is bad from then on, and the job is not suspended."""
    place = Place(monkeypatch)
    sales = {"sales": job(uses=(Use("api", "suspend"),))}
    a, b = Machine(place, "a", SHARED, **sales), Machine(place, "b", SHARED, **sales)
    for _ in range(2):
        a.turn()
    good = place.holds[OF_CHECK + "api"]
    keep = place.write

    async def beside(request: Any) -> Answer:
        said = await keep(request)
        if isinstance(request, Suspend) and request.suspended:  # a is paused here; b looks, and resumes the job
            monkeypatch.setattr(place, "write", keep)
            place.holds[OF_CHECK + "api"] = Hold(by="b", at=place.wall, note=good.note)
            del place.holds[OF_JOB + "sales"]
        return said

    monkeypatch.setattr(place, "write", beside)
    a.sees = "unhealthy"
    for _ in range(2):
        place.mono += 1.0
        a.turn()
    assert place.holds[OF_CHECK + "api"].by == "b"
    assert not unpack(place.holds[OF_CHECK + "api"].note).is_bad
    b.sees = "unhealthy"
    for _ in range(2):
        b.turn()
    assert unpack(place.holds[OF_CHECK + "api"].note).is_bad
    assert OF_JOB + "sales" in place.holds


@pytest.mark.parametrize("name", ["api", "sales/own"])
def test_a_check_that_is_gone_lets_its_jobs_go_and_not_because_one_node_lacks_it(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    place = Place(monkeypatch)
    b = Machine(place, "b", sales=job())  # it never had the check

    def passes(seconds: float) -> None:
        for _ in range(int(seconds)):
            place.mono += 1.0
            b.around()

    place.holds[OF_JOB + "sales"] = Hold(by=f"check {name}", at=place.wall)
    place.holds[OF_CHECK + name] = Hold(by="a", at=place.wall, note="bad")
    passes(3 * KEPT_S)
    assert b.let_go == []
    del place.holds[OF_CHECK + name]  # its end has come
    passes(KEPT_S - 1)
    place.state = "recovering"  # a ledger that went back has perhaps forgotten it
    passes(2.0)
    place.state = CONNECTED
    passes(KEPT_S - 1)
    assert b.let_go == []
    place.holds[OF_CHECK + name] = Hold(by="a", at=place.wall, note="bad")  # somebody looks again, at the last moment
    passes(2.0)
    del place.holds[OF_CHECK + name]
    passes(KEPT_S + 2)
    assert [one[1] for one in b.let_go] == [name]
    place.holds[OF_CHECK + name] = Hold(by="a", at=place.wall, note="bad")
    trio.run(b.checks._let_go, *b.let_go[0])
    assert OF_JOB + "sales" in place.holds, "the ledger knows better"
    del place.holds[OF_CHECK + name]
    trio.run(b.checks._let_go, *b.let_go[0])
    assert OF_JOB + "sales" not in place.holds
    assert b.audited == [f"job.resume sales: nobody looks at check {name} any more by check {name}"]


@pytest.mark.parametrize("uses", [(Use("api", "warn"),), ()], ids=["another then", "no use any more"])
def test_a_check_that_suspends_a_job_no_more_lets_it_go_and_only_its_checker_says_so(
    monkeypatch: pytest.MonkeyPatch, uses: tuple[Use, ...]
) -> None:
    place = Place(monkeypatch)
    a = Machine(place, "a", SHARED, sales=job(uses=(Use("api", "suspend"),)))
    b = Machine(place, "b", SHARED, sales=job(uses=uses))  # it has the new file before the checker has it
    a.sees = "unhealthy"
    a.turn()
    a.turn()
    assert (by(place), place.holds[OF_JOB + "sales"].by) == ("a", "check api")

    def passes(seconds: float) -> None:
        for _ in range(int(seconds)):
            place.mono += 1.0
            a.around()
            b.around()

    passes(3 * KEPT_S)
    assert (a.let_go, b.let_go) == ([], [])
    a.node.jobs["sales"] = b.node.jobs["sales"]
    passes(KEPT_S - 1)
    assert a.let_go == []
    passes(3.0)
    assert ([one[1] for one in a.let_go], b.let_go) == (["api"], [])
    seen = place.holds[OF_CHECK + "api"]
    place.holds[OF_CHECK + "api"] = Hold(by="b", at=seen.at, note=seen.note)
    trio.run(a.checks._let_go, *a.let_go[0])
    assert OF_JOB + "sales" in place.holds, "another node is the checker meanwhile"
    place.holds[OF_CHECK + "api"] = seen
    trio.run(a.checks._let_go, *a.let_go[0])
    assert OF_JOB + "sales" not in place.holds
    assert a.audited[-1] == "job.resume sales: check api does not suspend it any more by check api"


def test_what_a_person_suspends_or_another_check_holds_is_not_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(monkeypatch)
    b = Machine(place, "b", SHARED, sales=job(uses=(Use("api", "suspend"),)))
    place.holds[OF_JOB + "sales"] = Hold(by="maria", at=place.wall)
    trio.run(b.checks._let_go, b.node.jobs["sales"], "gone")
    assert place.holds[OF_JOB + "sales"].by == "maria"
    place.holds[OF_JOB + "sales"] = Hold(by="check gone", at=place.wall)
    place.holds[OF_CHECK + "api"] = Hold(by="a", at=place.wall, note=pack(Standing(state="unhealthy")))
    trio.run(b.checks._let_go, b.node.jobs["sales"], "gone")
    assert place.holds[OF_JOB + "sales"].by == "check api"


def test_a_job_that_two_checks_suspend_waits_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(monkeypatch)
    other = structs.replace(SHARED, name="queue")
    a = Machine(place, "a", SHARED, other, sales=job(uses=(Use("api", "suspend"), Use("queue", "suspend"))))

    def seen(check: Check, state: str) -> str:
        place.mono += 10.0
        a.sees = state
        a.turn(check)
        hold = place.holds.get(OF_JOB + "sales")
        return hold.by if hold is not None else ""

    for check in (SHARED, other):
        seen(check, "healthy")
    assert [seen(SHARED, "unhealthy"), seen(other, "insecure")] == ["check api"] * 2
    assert seen(SHARED, "healthy") == "check queue", "the other one holds it now"
    assert seen(SHARED, "healthy") == "check queue"
    assert seen(other, "healthy") == ""


def test_a_job_stays_suspended_while_nothing_is_known_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(monkeypatch)
    a = Machine(place, "a", SHARED, sales=job(uses=(Use("api", "suspend"),)))
    a.turn()
    place.holds[OF_JOB + "sales"] = Hold(by="check api", at=place.wall)  # the standing has ended with its hold
    a.sees = "unknown"
    for _ in range(LOST_AFTER - 1):
        place.mono += 10.0
        a.turn()
    assert OF_JOB + "sales" in place.holds
    place.mono += 10.0
    a.turn()
    assert OF_JOB + "sales" not in place.holds


def test_a_report_counts_beside_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(monkeypatch)
    alert = Check(name="ids", kind="report", scope="cluster", then="abstain")
    room = Check(name="room", kind="disk", path="/")
    a = Machine(place, "a", alert, room, sales=job())
    place.holds[OF_REPORTED + "ids"] = Hold(by="nagios", at=EPOCH, note="insecure somebody is in")
    place.holds[OF_REPORTED + "room@b"] = Hold(by="nagios", at=EPOCH, note="unhealthy it is another node's")
    a.checks._take(room, Result("healthy", "roomy"))
    a.around()
    rows = {row.check.key: row for row in a.checks.rows()}
    assert (rows["ids"].state, rows["ids"].text) == ("insecure", "somebody is in (reported by nagios)")
    assert (rows["room"].state, rows["room"].text) == ("healthy", "roomy")
    assert a.node.abstains_from["sales"].startswith("check ids is insecure")
    place.holds[OF_REPORTED + "room@a"] = Hold(by="nagios", at=EPOCH, note="degraded")
    assert {row.check.key: row.state for row in a.checks.rows()}["room"] == "degraded"
    place.holds[OF_REPORTED + "room@a"] = Hold(by="x", note="nonsense")
    assert {row.check.key: row.state for row in a.checks.rows()}["room"] == "healthy"
    assert view.counts(a.checks.rows())["insecure"] == 1


def test_what_other_nodes_tell_is_checked_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(monkeypatch)
    many = [Check(name=f"c{number}", kind="load") for number in range(900)]
    a = Machine(place, "a", *many)
    for check in many:
        bad = check.name == "c700"
        a.checks._take(check, Result("insecure" if bad else "healthy", "x" * 200))
    body = view.packed(a.checks.rows())
    assert len(body) <= view.BYTES_MAX
    rows = view.unpacked(body, "b")
    assert rows[0]["name"] == "c700"
    assert {row["node"] for row in rows} == {"b"}
    for nonsense in ("", "{}", "[1]", '[{"name":1}]', "[" * 100_000, json.dumps([{**rows[0], "state": "sick"}])):
        assert view.unpacked(nonsense, "b") == []


def test_the_ledgers_text_of_a_check_is_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(monkeypatch)
    a = Machine(place, "a", SHARED)
    a.turn()
    a.turn()
    hold = place.holds[OF_CHECK + "api"]
    assert unpack(hold.note).text == "a sees healthy"
    assert hold.until > place.wall + SHARED.every_s, "it ends by itself when nobody looks any more"
