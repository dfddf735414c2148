"""What coordd exec may run, under which name, and when: on a real ledger, with a node that says what the test wants."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from support.small_cluster import job

from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.core.context import Settings
from coordd.core.jobs.job import Job
from coordd.core.jobs.schedule import parse_duration
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Claim, Register
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.sound import policy_fault
from coordd.core.ledger.words import AttemptNumber, Policy
from coordd.core.ready import Launch, Now
from coordd.errors import RefusedError
from coordd.services.control.callers import ADMIN, OPERATOR, VIEWER, Caller
from coordd.services.control.lookups import Lookups
from coordd.services.control.quota import NAMES_MAX, RUNS_MAX, RUNS_PERIOD_S, RunShares
from coordd.services.guarding.held import ExecGuardMethods
from coordd.services.ledger import LedgerService, boottime
from coordd.services.once.methods import NOBODY_S
from coordd.services.relay import Relay

ROOT = Caller(0, frozenset(), ADMIN, 1, "root")
ANN = Caller(1001, frozenset(("etl",)), VIEWER, 1, "ann")
BOB = Caller(1002, frozenset(), VIEWER, 1, "bob")
ONE, TWO = "1" * 32, "2" * 32

# 2026-11-22T12:00:30Z
WALL = 1_795_348_830.0


class Desk(ExecGuardMethods):
    """The methods, and a node whose clocks and state are the test's."""

    def __init__(self, path: Path, **jobs: Job) -> None:
        self.wall = WALL
        self.fed: list[tuple[Any, ...]] = []
        self.node = SimpleNamespace(
            state="ready",
            braked="",
            unfit="",
            journal_failure="",
            hostname="n1",
            concurrency={},
            full_hostname="n1.7",
            jobs=jobs,
            settings=Settings(),
            skew_s=lambda _now: 0.0,
            token_seen=lambda _job: 0,
            exec_granted="granted",
            runner_started="started",
            runner_ended="ended",
        )
        driver: Any = SimpleNamespace(
            node=self.node,
            feed=self._feed,
            now=lambda: Now(boottime(), self.wall),
            journal_control=lambda *args, **_: self.fed.append(("audit", *args[:2])),
        )
        self.service = LedgerService(lambda: SqliteLedger(f"sqlite:///{path}/l.db", 5.0), 5.0)
        troubles: Any = None
        super().__init__(
            driver,
            self.service,
            troubles,
            ledger_url="url",
            job_problems=lambda: {"bad": ["broken"]},
            relay=Relay(driver, {}),
        )
        self._lookups = Lookups()
        self._watches, self._shares = {}, RunShares()

    def _feed(self, what: str, *args: Any) -> str:
        self.fed.append((what, *args))
        return ""

    async def claims(self, caller: Caller, nonce: str = ONE, how: str = "id", **params: Any) -> dict[str, Any]:
        asked = {"job": "report", "how": how, "nonce": nonce, "attempt": 0, **params}
        return await self.exec_claim(asked, caller)

    async def refusal(self, call: Awaitable[Any]) -> str:
        with pytest.raises(RefusedError) as caught:
            await call
        return caught.value.kind


Asked = Callable[[Desk], Awaitable[None]]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.service.close()


def holders(granted: dict[str, Any], nonce: str = ONE, **more: Any) -> dict[str, Any]:
    return {**granted["held"], "attempt": granted["attempt"], "token": granted["token"], "nonce": nonce, **more}


def test_the_first_caller_gets_it_and_the_second_hears_of_the_end(desk: Desk) -> None:
    async def asks() -> None:
        granted = await desk.claims(ANN, what="x")
        assert (granted["word"], granted["run"]) == ("granted", "report~1001#x")
        assert desk.fed[0][0] == "granted"
        held = await desk.claims(ANN, TWO, what="x")
        assert (held["word"], held["attempt"]) == ("held", 0)
        assert (await desk.exec_gate(holders(granted), ANN))["word"] == "ok"
        assert (await desk.exec_renew(holders(granted, launched=True), ANN))["word"] == "ok"
        assert (await desk.exec_renew(holders(granted, TWO, launched=True), ANN))["word"] == "lost"
        done = await desk.exec_report(holders(granted, state="success", exit_code=0), ANN)
        assert done["word"] == "ok"
        assert [what for what, *_ in desk.fed] == ["granted", "started", "ended"]
        over = await desk.claims(ANN, TWO, what="x")
        assert (over["word"], over["state"]) == ("finished", "success")
        assert (await desk.claims(ANN, TWO, what="y"))["word"] == "granted", "each id runs"

    trio.run(asks)


def test_a_caller_on_a_node_that_starts_nothing_hears_of_an_end_elsewhere(desk: Desk) -> None:
    async def asks() -> None:
        granted = await desk.claims(ANN, what="x")
        desk.node.unfit = "it is drained"
        assert (await desk.claims(ANN, TWO, what="x"))["word"] == "limited"
        await desk.exec_gate(holders(granted), ANN)
        await desk.exec_report(holders(granted, state="failure", exit_code=3, reason="exit code 3"), ANN)
        over = await desk.claims(ANN, TWO, what="x")
        assert (over["word"], over["state"], over["why"]) == ("finished", "failure", "exit code 3")
        assert (await desk.claims(ANN, TWO, what="y"))["word"] == "limited"
        desk.node.braked = "it does not know yet whether the others use this ledger"
        assert (await desk.claims(ANN, TWO, what="x"))["word"] == "limited"

    trio.run(asks)


def test_names_belong_to_users(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 77)

    async def asks() -> None:
        operator = Caller(1003, frozenset(("ops",)), OPERATOR, 1, "op")
        inside = Caller(77, frozenset(), VIEWER, 1, "inside a run")
        for caller, name in ((ROOT, "report"), (inside, "report"), (ANN, "report~1001"), (operator, "report~1003")):
            answer = await desk.claims(caller, ONE if caller is not inside else TWO, what="x")
            assert answer["job"] == name
            assert answer["word"] == ("held" if caller is inside else "granted")

    trio.run(asks)


def test_a_stranger_chooses_no_lease_longer_than_the_clusters(desk: Desk) -> None:
    """The longest lease of all open runs decides how long a ledger that went back grants nothing."""

    async def asks() -> None:
        assert await desk.refusal(desk.claims(ANN, what="x", lease=86_400.0)) == "bad_argument"
        assert (await desk.claims(ROOT, what="x", lease=86_400.0))["terms"]["lease_s"] == 86_400.0
        granted = await desk.claims(ANN, what="x")
        assert granted["terms"]["lease_s"] == 60.0
        await desk.exec_gate(holders(granted), ANN)
        renewed = await desk.exec_renew(holders(granted, launched=True, lease=86_400.0), ANN)
        assert 0.0 < renewed["left_s"] <= 60.0

    trio.run(asks)


def test_claims_that_are_not_granted_count_as_names_too(desk: Desk) -> None:
    """Each leaves a row of its name in the ledger."""

    async def asks() -> None:
        for number in range(NAMES_MAX):
            over = await desk.claims(ANN, what="x", job=f"n{number}", attempt=1)
            assert over["word"] == "finished"
        assert await desk.refusal(desk.claims(ANN, what="x", job="another", attempt=1)) == "not_permitted"
        assert await desk.refusal(desk.claims(ANN, what="x", job="another")) == "not_permitted", "waiting does not help"

    trio.run(asks)


def test_a_run_of_a_period_may_start_in_all_of_it(desk: Desk) -> None:
    """It is dated by the begin of its period: a call of the evening is not late."""

    async def asks() -> None:
        for what in ("1d", "1w"):
            begin = math.floor(WALL / parse_duration(what)) * parse_duration(what)
            assert WALL - begin > 3600.0, "late in its period, for the usual start_within"
            granted = await desk.claims(ANN, how="every", what=what, job=f"each-{what}")
            assert granted["word"] == "granted", what
            assert Policy.unpack(granted["held"]["policy"]).start_within_s == parse_duration(what)
        longest = await desk.claims(ANN, how="every", what="1304w", job="each-1304w")
        assert policy_fault(longest["held"]["policy"]) == ""
        usual = await desk.claims(ANN, how="every", what="5m", job="each-5m")
        assert Policy.unpack(usual["held"]["policy"]).start_within_s == 3600.0

    trio.run(asks)


def test_a_job_file_says_who_may_and_how(tmp_path: Path) -> None:
    desk = Desk(
        tmp_path,
        report=job("report", owner="etl", overlap="allow", on_lost="hold", timeout_s=9.0, lease_s=90.0),
        held=job("held", enabled=False),
    )

    async def asks() -> None:
        granted = await desk.claims(ANN, how="lock")
        assert (granted["job"], granted["terms"]["on_lost"], granted["terms"]["timeout_s"]) == ("report", "hold", 9.0)
        assert granted["terms"]["lease_s"] == 90.0
        assert ("audit", "exec", granted["run"]) in desk.fed
        assert (await desk.claims(ANN, TWO, how="lock"))["word"] == "granted", "overlap = allow"
        assert await desk.refusal(desk.claims(BOB, how="lock")) == "not_permitted"
        assert await desk.refusal(desk.claims(ROOT, how="lock", job="held")) == "held"
        assert await desk.refusal(desk.claims(ROOT, how="lock", job="bad")) == "bad_job"

    trio.run(asks)
    desk.service.close()


def test_a_lock_is_skipped_or_waited_for(desk: Desk) -> None:
    async def asks() -> None:
        granted = await desk.claims(ANN, how="lock")
        assert (await desk.claims(ANN, TWO, how="lock", wait=True))["word"] == "limited"
        skipped = await desk.claims(ANN, TWO, how="lock")
        assert (skipped["word"], skipped["state"]) == ("finished", "rejected")
        await desk.exec_gate(holders(granted), ANN)
        await desk.exec_report(holders(granted, state="lost"), ANN)
        assert (await desk.claims(ANN, "3" * 32, how="lock", wait=True))["word"] == "granted", "a lost lock is free"

    trio.run(asks)


def test_a_lost_run_without_callers_blocks_nobody(desk: Desk) -> None:
    async def asks() -> None:
        granted = await desk.claims(ANN, how="every", what="10s")
        await desk.exec_gate(holders(granted), ANN)
        await desk.exec_report(holders(granted, state="lost"), ANN)
        desk.wall += 10
        soon = await desk.claims(ANN, TWO, how="every", what="10s")
        assert (soon["word"], soon["state"]) == ("finished", "rejected"), "a caller may still take the lost one over"
        again = await desk.claims(ANN, TWO, how="every", what="10s", ident=granted["ident"], attempt=1)
        assert (again["word"], again["attempt"]) == ("granted", 1)
        await desk.exec_gate(holders(again, TWO), ANN)
        await desk.exec_report(holders(again, TWO, state="lost"), ANN)
        desk.wall += 10
        desk.wall += NOBODY_S + 10
        later = await desk.claims(ANN, TWO, how="every", what="10s")
        assert later["word"] == "granted"

    desk.wall = time.time()  # what the ledger's file is asked with
    trio.run(asks)


@pytest.mark.parametrize(
    ("how", "what", "zone", "skew_s", "ident", "word"),
    [
        ("every", "5m", "", 0.0, "2026-11-22T12:00:00Z", "granted"),
        ("tick", "0 12 * * *", "UTC", 0.0, "2026-11-22T12:00:00Z", "granted"),
        ("tick", "0 13 * * *", "Europe/Berlin", 0.0, "2026-11-22T12:00:00Z", "granted"),
        ("every", "5m", "", 40.0, "2026-11-22T12:00:00Z", "early"),  # fast: the ledger is not there yet
        ("every", "5m", "", -400.0, "2026-11-22T12:05:00Z", "granted"),  # slow: the ledger is further
        ("every", "5m", "", 7200.0, "2026-11-22T10:00:00Z", "granted"),  # too wrong to be waited for
    ],
)
def test_a_tick_is_the_ledgers(
    desk: Desk, how: str, what: str, zone: str, skew_s: float, ident: str, word: str
) -> None:
    desk.node.skew_s = lambda _now: skew_s

    async def asks() -> None:
        answer = await desk.claims(ANN, how=how, what=what, timezone=zone)
        assert (answer["ident"], answer["word"]) == (ident, word)
        if word == "early":
            assert answer["in_s"] == pytest.approx(10.0)
        repeated = await desk.claims(ANN, TWO, how=how, what=what, timezone=zone, ident=answer["ident"])
        assert repeated["run"] == answer["run"]

    trio.run(asks)


def test_a_node_that_starts_nothing_asks_nothing(desk: Desk) -> None:
    async def asks() -> None:
        for field, value in (("state", "draining"), ("braked", "another ledger"), ("unfit", "its disk is full")):
            before = getattr(desk.node, field)
            setattr(desk.node, field, value)
            answer = await desk.claims(ANN, what="x")
            assert answer["word"] == "limited"
            assert value in answer["why"]
            setattr(desk.node, field, before)
        desk.node.journal_failure = "full"
        assert (await desk.claims(ANN, what="x"))["word"] == "limited"
        desk.node.journal_failure = ""
        assert (await desk.claims(ANN, what="x", attempt=1))["word"] == "granted", "the first one was given back"

    trio.run(asks)


def test_a_program_of_a_job_cannot_end_its_run_as_a_holder(desk: Desk) -> None:
    """It finds token and nonce in its environment."""
    of = Registration("sales#1", "sales", "d1", Policy(), WALL, scheduled=False)
    claim = Claim(of=of, attempt=AttemptNumber(0), nonce=ONE, node="n1.7", lease_s=60.0)

    async def asks() -> None:
        await desk.service.write(Register(of=of))
        answer = await desk.service.write(claim)
        launch = Launch("sales#1", "sales", AttemptNumber(0), answer.token, ONE, WALL, "{}", 0.0, 60.0)
        told = {
            "held": {"run": launch.run, "lease": 60.0, "fire_at": WALL, "policy": Policy().pack()},
            "attempt": 0,
            "token": launch.token,
        }
        for call in (
            desk.exec_gate(holders(told), ROOT),
            desk.exec_renew(holders(told, launched=True), ROOT),
            desk.exec_report(holders(told, state="success", exit_code=0), ROOT),
            desk.exec_restore(holders(told, state="success"), ROOT),
        ):
            assert await desk.refusal(call) == "not_permitted"
        assert desk.fed == []

    trio.run(asks)


def test_who_holds_a_run_may_commit_it_once(desk: Desk) -> None:
    async def asks() -> None:
        first = await desk.claims(ANN, what="x")
        assert (await desk.exec_standing(holders(first), ANN))["word"] == "stale", "it has not begun"
        await desk.exec_gate(holders(first), ANN)
        assert (await desk.exec_standing(holders(first), ANN))["word"] == "ok"
        assert (await desk.exec_commit(holders(first, TWO), ANN))["word"] == "stale"
        assert (await desk.exec_commit(holders(first), ANN))["word"] == "ok"
        await desk.exec_report(holders(first, state="lost"), ANN)
        said = await desk.exec_commit(holders(first), ANN)
        assert (said["word"], said["token"]) == ("stale", first["token"])
        second = await desk.claims(ANN, TWO, what="x", attempt=1)
        await desk.exec_gate(holders(second, TWO), ANN)
        told = [await ask(holders(second, TWO), ANN) for ask in (desk.exec_commit, desk.exec_standing)]
        assert [(one["word"], one["token"]) for one in told] == [("committed", first["token"])] * 2

    trio.run(asks)


def test_only_its_user_restores_a_run(desk: Desk) -> None:
    async def asks() -> None:
        granted = await desk.claims(ANN, what="x")
        assert await desk.refusal(desk.exec_restore(holders(granted, state="started"), BOB)) == "not_permitted"
        assert (await desk.exec_restore(holders(granted, state="started"), ANN))["word"] == "stale", "no quarantine"

    trio.run(asks)


def test_a_user_without_rights_restores_a_bounded_part(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever invents a grant writes a row by it, while the ledger takes back what it has forgotten."""

    async def ok(*_: Any) -> Answer:
        return Answer("ok")

    async def asks() -> None:
        granted = await desk.claims(ANN, what="x")
        monkeypatch.setattr(desk, "_ask_for", ok)
        desk._shares = RunShares()
        invented = holders(granted, state="started")
        for number in range(RUNS_MAX):
            assert (await desk.exec_restore({**invented, "run": f"report~1001#{number}"}, ANN))["word"] == "ok"
        assert await desk.refusal(desk.exec_restore(invented, ANN)) == "try_later"
        desk._shares = RunShares()
        for number in range(NAMES_MAX):
            await desk.exec_restore({**invented, "run": f"n{number}~1001#x"}, ANN)
        assert await desk.refusal(desk.exec_restore(invented, ANN)) == "not_permitted"
        assert (await desk.exec_restore(invented, ROOT))["word"] == "ok"

    trio.run(asks)


def test_a_user_without_rights_writes_a_bounded_part(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and names stay for months. Whoever has rights has no bounds."""
    shares = desk._shares
    for number in range(RUNS_MAX):
        assert shares.full(ANN.uid, 5.0) == ""
        shares.wrote(ANN.uid, 5.0 + number / 1000)
    assert "runs" in shares.full(ANN.uid, 6.0)
    assert shares.full(ANN.uid, 6.0, takeover=True) == ""
    assert shares.full(BOB.uid, 6.0) == ""
    assert shares.full(ANN.uid, 6.0 + RUNS_PERIOD_S) == ""
    for number in range(NAMES_MAX):
        shares.asked(BOB.uid, f"{number}~1002")
    assert "names" in shares.no_name(BOB.uid, "another~1002")
    assert shares.no_name(BOB.uid, "1~1002") == ""

    async def asks() -> None:
        assert await desk.refusal(desk.claims(BOB, what="x")) == "not_permitted"
        assert (await desk.claims(ANN, what="x"))["word"] == "granted"
        assert shares._written[ANN.uid][-1] == pytest.approx(boottime(), abs=60)
        monkeypatch.setattr(shares, "full", lambda *_, takeover: "" if takeover else "full")
        assert await desk.refusal(desk.claims(ANN, TWO, what="y")) == "try_later"
        assert (await desk.claims(ROOT, TWO, what="y"))["word"] == "granted"
        assert (await desk.claims(ANN, TWO, what="x", attempt=1))["word"] == "held", "not for a takeover"

    trio.run(asks)


@pytest.mark.parametrize(
    "wrong",
    [
        {"job": "a/b"},
        {"job": "a~1001"},
        {"how": "tick", "what": "every day"},
        {"how": "tick", "what": "0 0 30 2 *"},
        {"how": "tick", "what": "* * * * *", "timezone": "Moon"},
        {"how": "every", "what": "soon"},
        {"how": "every", "what": "10ms"},
        {"how": "every", "what": "5m", "ident": "yesterday"},
        {"how": "id", "what": "a b"},
        {"how": "id", "what": ""},
        {"how": "id"},
        {"how": "never"},
        {"what": "x", "lease": 5},
        {"what": "x", "lease": 1e9},
        {"what": "x", "nonce": "short"},
        {"what": "x", "attempt": -1},
    ],
)
def test_what_cannot_be_meant_is_refused(desk: Desk, wrong: dict[str, Any]) -> None:
    async def asks() -> None:
        assert await desk.refusal(desk.claims(ANN, **wrong)) in ("bad_argument", "invalid_params")

    trio.run(asks)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"how": "id", "what": ""}, "the id '' must be 1 to 128"),
        ({"how": "every", "what": "5x"}, "every: expected a duration"),
        ({"how": "every", "what": "10ms"}, "every: expected whole seconds, at least 1s; found '10ms'"),
        ({"how": "every", "what": "1500ms"}, "every: expected whole seconds, at least 1s; found '1500ms'"),
        ({"how": "tick", "what": "x"}, "tick: expected"),
        ({"what": "x", "lease": 99_999_999.0}, "lease: expected 19.4 to 60 s, found 99999999"),
        ({"what": "x", "lease": 5.25}, "found 5.25; the least is renew_interval + 2 x ledger_timeout + kill_grace"),
    ],
)
def test_a_refusal_names_what_was_given(desk: Desk, wrong: dict[str, Any], sentence: str) -> None:
    """By its name in the call: a command has `--every`, a Python program `every`."""

    async def asks() -> None:
        with pytest.raises(RefusedError) as caught:
            await desk.claims(ANN, **wrong)
        text = str(caught.value)
        assert sentence in text
        assert "--" not in text
        assert ("the least is" in text) == (wrong.get("lease") == 5.25)

    trio.run(asks)


@pytest.mark.parametrize(
    "wrong", [{"run": "a@b"}, {"run": "a~b#1"}, {"policy": "no"}, {"lease": 1e9}, {"fire_at": -1.0}, {"token": 2**60}]
)
def test_a_holder_that_makes_no_sense_is_refused(desk: Desk, wrong: dict[str, Any]) -> None:
    async def asks() -> None:
        granted = await desk.claims(ANN, what="x")
        assert await desk.refusal(desk.exec_gate({**holders(granted), **wrong}, ANN)) == "invalid_params"

    trio.run(asks)
