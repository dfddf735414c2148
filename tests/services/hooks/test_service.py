"""The service of hooks on one node: which events it asks runs for, once each, and what it leaves to others."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
from structlog.testing import capture_logs
from support.small_cluster import EPOCH, job

from coordd.config.hooks.hook import Hook, jobs_of, of_lineage
from coordd.core.jobs.job import Breaker
from coordd.core.jobs.trigger import Trigger
from coordd.core.ledger.breaker.text import OPEN, State
from coordd.core.ledger.rows import OF_BREAKER, Hold
from coordd.core.ledger.runner_requests import Registration
from coordd.core.node.alarms import Alarms
from coordd.core.ready import Notice, Now, Reply
from coordd.core.trace import trace_id
from coordd.core.wire import events
from coordd.errors import UnavailableError
from coordd.services.hooks import happenings, service as module
from coordd.services.hooks.service import Hooks

HERE, ELSEWHERE = "a.1", "b.2"
PAGE = Hook(
    on=("run.failure", "job.late", "node.lost", "breaker.opened", "cluster.ready", "takeover", "run.lost"), name="page"
)


def row(run: str, state: str = "failure", *, attempt: int = 0, ended_at: float = EPOCH, **fields: Any) -> Any:
    known = {"job": run.partition("#")[0], "node": HERE, "reason": "", "started_at": 0.0, "received_at": 0.0, **fields}
    return SimpleNamespace(run=run, state=state, attempt=attempt, ended_at=ended_at, **known)


class Machine:
    """A node, its ledger and its clock, as far as hooks see them. It remembers what was triggered."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, *hooks: Hook) -> None:
        self.mono, self.wall = 1000.0, EPOCH
        self.rows: dict[str, Any] = {}
        self.down = False
        self.last: dict[str, float] = {}
        self.reply = Reply(1, {}, "")
        self.triggered: list[Registration] = []
        self.listeners: list[Any] = []
        self.recent: deque[Any] = deque(maxlen=2000)
        self.recent_total = 0
        self.breakers = (SimpleNamespace(name="bus", opened=0, reason="gone"),)
        self.found = SimpleNamespace(late_jobs={})
        self.problem = ""
        self.node = SimpleNamespace(
            full_hostname=HERE, hostname="a", incarnation="1-x", state="ready", concurrency={},
            settings=SimpleNamespace(cluster="c1"), jobs=jobs_of(hooks or (PAGE,), 60.0), jobs_digest="",
            identity_from=EPOCH, members={},
            drains=SimpleNamespace(holds={}, pause=None, suspended=frozenset()), skew_s=lambda now: 0.0,
            pursuits=SimpleNamespace(pursuits={}, running={}, epitaphs={}), member_counts=lambda: {"alive": 3},
        )  # fmt: skip
        monkeypatch.setattr(module, "boottime", lambda: self.mono)
        monkeypatch.setattr(module, "run_fault", lambda _: "")
        monkeypatch.setattr(module, "LOOK_S", 0.0)
        self.path = path / "hooks.json"
        self.hooks = self.started(*hooks)

    def started(self, *hooks: Hook) -> Hooks:
        this: Any = self
        return Hooks(hooks or (PAGE,), str(self.path), this, this, this, this)

    def now(self) -> Now:
        return Now(self.mono, self.wall)

    async def query(self, call: Any) -> Any:
        if self.down:
            raise UnavailableError("no ledger")
        return call(self)

    def run(self, run: str) -> Any:
        return self.rows.get(run)

    def runs(self, *, state: str, limit: int, job: str = "") -> list[Any]:
        """As the ledger does, but newest first means last in ``rows``."""
        return [one for one in reversed(self.rows.values()) if one.state == state and job in ("", one.job)][:limit]

    def succeeded(self, _jobs: list[str]) -> dict[str, float]:
        return self.last

    async def trigger(self, of: Registration) -> Reply:
        self.triggered.append(of)
        return self.reply

    # ---- what the tests do

    def look(self, seconds: float = 0.0) -> list[dict[str, Any]]:
        """Let the service look once, after that time; returns the documents that it has asked runs for since."""
        self.mono += seconds
        self.wall += seconds
        before = len(self.triggered)

        async def once() -> None:
            with trio.move_on_after(0.05):
                await self.hooks.run()

        seen = -1
        while seen < len(self.triggered):  # on a loaded machine one moment is not enough for all
            seen = len(self.triggered)
            trio.run(once)
        args = [json.loads(of.args) for of in self.triggered[before:]]
        return [json.loads(one["event"]) for one in args if "event" in one]  # those of hooks

    def journals(self, *said: Any, notices: tuple[Notice, ...] = ()) -> None:
        for listener in self.listeners:
            listener(said, notices)

    def hears(self, event: Any) -> None:
        self.recent.append((SimpleNamespace(sender=ELSEWHERE, incarnation="b1"), event))
        self.recent_total += 1


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def failed(run: str, node: str = HERE) -> Any:
    return events.TaskFailed(uuid="u", name=run.partition("#")[0], run=run, node=node)


def test_an_end_of_our_own_is_told_once(machine: Machine) -> None:
    machine.look()
    machine.rows["etl#1"] = row("etl#1", reason="exit code 3")
    machine.journals(failed("etl#1"))
    (told,) = machine.look(1.0)

    assert (told["event"], told["run"], told["cluster"], told["reason"]) == (
        "run.failure",
        "etl#1",
        "c1",
        "exit code 3",
    )
    (of,) = machine.triggered
    assert (of.job, of.by, of.run.startswith("hook~page#run.failure.")) == ("hook~page", "hook", True)
    machine.journals(failed("etl#1"))
    assert machine.look(60.0) == []


def test_a_failure_that_is_retried_is_not_told(machine: Machine) -> None:
    machine.look()
    machine.rows["etl#1"] = row("etl#1", "started")
    machine.journals(failed("etl#1"))
    assert machine.look(1.0) == [], "its runner has not reported yet"
    machine.rows["etl#1"] = row("etl#1", "retry", attempt=1)
    assert machine.look(3.0) == []
    machine.rows["etl#1"] = row("etl#1", "failure", attempt=1)
    assert machine.look(3.0) == [], "nobody has said that it has ended"
    machine.journals(failed("etl#1"))
    assert len(machine.look(1.0)) == 1


def test_an_end_of_another_node_is_told_by_us_if_nobody_has(machine: Machine) -> None:
    machine.look()
    machine.rows |= {"etl#1": row("etl#1"), "etl#2": row("etl#2")}
    machine.hears(failed("etl#1", ELSEWHERE))
    machine.hears(failed("etl#2", ELSEWHERE))
    assert machine.look(1.0) == [], "the other node comes first"
    ident = happenings.of_row(machine.rows["etl#2"])
    assert ident is not None
    machine.node.pursuits.pursuits[f"hook~page#{ident.ident()}"] = "known"
    assert [told["run"] for told in machine.look(4.0)] == ["etl#1"]


def test_what_nobody_told_is_read_from_the_ledger_after_its_configuration_only(machine: Machine) -> None:
    machine.rows |= {"old#1": row("old#1", ended_at=EPOCH - 60.0), "new#1": row("new#1", ended_at=EPOCH + 1.0)}
    assert [told["run"] for told in machine.look(30.0)] == ["new#1"]
    again = machine.started()  # the daemon was restarted: it had the hook before
    machine.hooks = again
    machine.rows["late#1"] = row("late#1", ended_at=EPOCH + 2.0)
    assert sorted(told["run"] for told in machine.look(30.0)) == ["late#1", "new#1"], "the ledger has new#1 once"


def test_a_ledger_that_is_away_is_read_later(machine: Machine) -> None:
    machine.down = True
    machine.rows["etl#1"] = row("etl#1")
    machine.journals(failed("etl#1"))
    assert machine.look(30.0) == []
    machine.down = False
    assert len(machine.look(1.0)) == 1


def test_a_hook_is_not_told_of_hooks(machine: Machine) -> None:
    machine.rows["hook~page#1"] = row("hook~page#1", job="hook~page")
    machine.journals(failed("hook~page#1"))
    machine.found.late_jobs = {"hook~page": "late"}

    assert machine.look(30.0) == []
    assert machine.look(30.0) == []


def test_lost_attempts_and_takeovers(machine: Machine) -> None:
    lost = events.TaskRetried(uuid="u", name="etl", run="etl#1", node=ELSEWHERE, result="retry")
    machine.look()
    machine.journals(lost)
    told = machine.look(1.0)
    assert [one["event"] for one in told] == ["run.lost", "takeover"]
    assert {(one["run"], one["node"]) for one in told} == {("etl#1", "b")}
    given_back = events.TaskRetried(uuid="u", name="etl", run="etl#2", node=HERE, result="retry")
    machine.journals(given_back)
    assert machine.look(10.0) == []


def test_a_late_job_is_told_once_until_it_is_on_time_again(machine: Machine) -> None:
    machine.found.late_jobs = {"etl": "expected"}
    assert machine.look(1.0) == []
    (told,) = machine.look(4.0)
    assert (told["event"], told["job"], told["sentence"]) == ("job.late", "etl", "etl is late: expected")
    assert machine.look(600.0) == []
    machine.found.late_jobs = {}
    machine.look(1.0)
    machine.found.late_jobs = {"etl": "expected"}
    machine.last = {"etl": EPOCH + 5.0}
    machine.look(1.0)
    assert len(machine.look(4.0)) == 1


def test_a_lost_node_a_breaker_and_the_cluster(machine: Machine) -> None:
    machine.look()
    machine.journals(notices=(Notice("node.lost", {"peer": "b.2"}), Notice("node.joined", {"peer": "b.2"})))
    machine.breakers[0].opened = 1
    machine.problem = "1 of 3 nodes take new runs"
    assert [told["event"] for told in machine.look(1.0)] == ["breaker.opened"]
    assert [told["event"] for told in machine.look(5.0)] == ["node.lost"]
    machine.problem = ""
    assert machine.look(1.0) == []
    (told,) = machine.look(4.0)
    assert (told["event"], told["sentence"]) == ("cluster.ready", "the cluster is ready, 3 nodes alive")


def test_an_attempt_that_was_started_twice_is_told_by_each_node_under_one_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, monkeypatch, msgspec.structs.replace(PAGE, on=("alarm.raised",)))
    machine.look()
    ctx: Any = SimpleNamespace(note=lambda *_, **__: None, out=SimpleNamespace())
    alarms = machine.node.alarms = Alarms(ctx)
    for token, node in ((8, ELSEWHERE), (7, HERE)):
        alarms.saw(events.TaskStarted(uuid="u", name="etl", run="etl#1", attempt=2, token=token, node=node))
    notice = Notice("alarm.raised", {"id": "etl#1/2:7:8", "text": "it was started twice"})
    machine.journals(notices=(notice, notice, Notice("alarm.raised", {"id": "cleared"})))
    (told,) = machine.look(5.0)
    assert (told["event"], told["job"], told["run"], told["attempt"]) == ("alarm.raised", "etl", "etl#1", 2)
    assert told["sentence"] == (
        f"alarm: etl#1, attempt 2, was started twice: on {HERE} under token 7, and on {ELSEWHERE} under token 8"
    )
    assert machine.triggered[0].run.startswith("hook~page#alarm.raised.")


def test_a_cluster_that_was_not_ready_for_a_moment_is_no_news(machine: Machine) -> None:
    machine.problem = "a moment"
    machine.look()
    machine.problem = ""

    assert machine.look(1.0) == []
    assert machine.look(10.0) == []


def test_a_storm_is_bounded_and_named(machine: Machine) -> None:
    machine.look()
    machine.rows |= {f"etl#{number}": row(f"etl#{number}") for number in range(100)}
    with capture_logs() as logs:
        for number in range(100):
            machine.journals(failed(f"etl#{number}"))
        machine.look(1.0)
        machine.look(1.0)
        machine.look(1.0)
    said = [line for line in logs if line["event"] == "hook.dropped"]

    assert len(machine.triggered) == module.A_MINUTE
    assert said[0]["reason"] == "more than 60 events of hook~page within a minute"
    assert len(said) < 10
    assert machine.hooks.dropped >= 40


def test_after_a_restart_what_was_told_before_uses_up_nothing(machine: Machine) -> None:
    machine.look()
    for number in range(90):
        one = machine.rows[f"etl#{number}"] = row(f"etl#{number}")
        happening = happenings.of_row(one)
        assert happening is not None
        told = f"hook~page#{happening.ident()}"
        machine.rows[told] = row(told, "success", job="hook~page")
    machine.hooks = machine.started()
    machine.rows["new#1"] = row("new#1")
    machine.journals(notices=(Notice("node.lost", {"peer": "b.2"}),))
    with capture_logs() as logs:
        told_now = [*machine.look(4.0), *machine.look(4.0)]

    assert sorted(told["event"] for told in told_now) == ["node.lost", "run.failure"]
    assert [line for line in logs if line["event"] == "hook.dropped"] == []


def test_a_ledger_that_is_away_is_asked_for_the_run_all_the_same(machine: Machine) -> None:
    """A request that the ledger cannot take now is kept by the node."""
    machine.look()
    machine.down = True
    machine.journals(notices=(Notice("node.lost", {"peer": "b.2"}),))

    assert [told["event"] for told in machine.look(4.0)] == ["node.lost"]


def test_an_event_without_a_row_waits_for_the_next_minute(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 5)
    machine.look()
    machine.rows |= {f"etl#{number}": row(f"etl#{number}") for number in range(100)}
    assert len(machine.look(30.0)) == module.A_MINUTE
    before = machine.hooks.dropped
    machine.journals(notices=tuple([Notice("node.lost", {"peer": f"b.{number}"}) for number in range(10)]))
    assert machine.look(5.0) == []
    assert machine.hooks.dropped - before == 5, "their number is bounded"
    machine.rows.clear()
    told = machine.look(60.0)
    assert [one["event"] for one in told] == ["node.lost"] * 5
    assert machine.look(60.0) == []


def test_what_waits_already_does_not_wait_twice(machine: Machine) -> None:
    machine.look()
    for _ in range(2 * module.WAITING_MAX):
        machine.journals(notices=(Notice("node.lost", {"peer": "b.2"}),))
    machine.journals(notices=(Notice("node.lost", {"peer": "b.3"}),))

    assert len(machine.look(5.0)) == 2


def test_another_node_told_it_in_its_own_words(machine: Machine) -> None:
    machine.look()
    machine.reply = Reply(1, {}, "conflict", "it is there")
    machine.journals(notices=(Notice("node.lost", {"peer": "b.2"}),))
    with capture_logs() as logs:
        assert len(machine.look(4.0)) == 1
        machine.journals(notices=(Notice("node.lost", {"peer": "b.2"}),))
        assert machine.look(4.0) == []
    assert [line for line in logs if line["event"] == "hook.not_registered"] == []


def test_a_trigger_that_is_refused_is_tried_again_by_the_next_look_at_the_ledger(machine: Machine) -> None:
    machine.reply = Reply(1, {}, "try_later", "too many wait")
    machine.rows["etl#1"] = row("etl#1")
    with capture_logs() as logs:
        assert len(machine.look(30.0)) == 1
    assert "hook.not_registered" in [line["event"] for line in logs]
    machine.reply = Reply(1, {}, "")
    assert len(machine.look(30.0)) == 1
    assert machine.look(30.0) == []


def test_a_file_of_hooks_that_cannot_be_read_is_named(machine: Machine) -> None:
    machine.path.write_text("[1")
    with capture_logs() as logs:
        machine.hooks = machine.started()
    assert [line["event"] for line in logs] == ["hooks.not_known"]
    machine.rows["etl#1"] = row("etl#1", ended_at=EPOCH - 1.0)
    assert machine.look(30.0) == []


def test_lineage_is_told_of_the_first_start_and_of_the_end_and_hooks_are_not_told_of_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = Hook(on=("run.*",), name="every")
    machine = Machine(tmp_path, monkeypatch, of_lineage("http://h", "prod", ""), every)
    machine.look()
    machine.journals(events.TaskStarted(uuid="u", name="etl", run="etl#1", node=HERE))
    machine.journals(events.TaskStarted(uuid="u", name="hook~every", run="hook~every#1", node=HERE))
    (told,) = machine.look(1.0)
    assert (told["eventType"], told["job"]["name"]) == ("START", "etl")
    machine.journals(events.TaskStarted(uuid="u", name="etl", run="etl#1", attempt=1, node=HERE))
    assert machine.look(1.0) == [], "a takeover does not start it again"
    machine.rows["etl#1"] = row("etl#1", "success", attempt=1)
    machine.journals(events.TaskSucceeded(uuid="u", name="etl", run="etl#1", attempt=1, node=HERE))
    complete, plain = sorted(machine.look(1.0), key=lambda one: "event" in one)
    assert (complete["eventType"], complete["run"]["runId"]) == ("COMPLETE", told["run"]["runId"])
    assert plain["event"] == "run.success"
    assert "trace_id" not in plain


def test_an_event_about_a_run_has_its_trace_if_there_are_traces(machine: Machine) -> None:
    machine.hooks.traced = True
    machine.look()
    machine.rows["etl#1"] = row("etl#1")
    machine.journals(failed("etl#1"), notices=(Notice("node.lost", {"peer": ELSEWHERE}),))
    by_event = {told["event"]: told for told in machine.look(5.0)}
    assert by_event["run.failure"]["trace_id"] == trace_id("c1", "etl#1")
    assert "trace_id" not in by_event["node.lost"]


def test_a_start_that_its_node_did_not_tell_is_told_by_another_or_with_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, monkeypatch, of_lineage("http://h", "prod", ""))
    machine.look()
    machine.hears(events.TaskStarted(uuid="u", name="etl", run="etl#1", node=ELSEWHERE))
    assert machine.look() == [], "its own node comes first"
    (told,) = machine.look(module.HEARD_S + 0.1)
    assert (told["eventType"], told["run"]["facets"]["coordd_run"]["node"]) == ("START", "b")
    machine.rows["etl#2"] = row("etl#2", "success", started_at=machine.wall + 1.0, ended_at=machine.wall + 2.0)
    kinds = {told["eventType"]: told["eventTime"] for told in machine.look(module.READ_S + 1.0)}
    assert set(kinds) == {"START", "COMPLETE"}
    assert kinds["START"] < kinds["COMPLETE"]


def test_ends_wait_for_the_trigger_of_a_job_that_is_not_enabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, monkeypatch)

    def use(*, enabled: bool, digest: str) -> None:
        event = Trigger(kind="event", name="bad", on=("run.failure",), args={"of": "{trigger.run}"})
        of = job("mend", triggers=(event,), params={"of": ""}, overlap="allow", enabled=enabled)
        machine.node.jobs = {**machine.node.jobs, "mend": of}
        machine.node.jobs_digest = digest

    def asked() -> list[str]:
        machine.look(60.0)
        return sorted(json.loads(of.args)["of"] for of in machine.triggered)

    machine.hooks = machine.started(Hook(on=("node.lost",), name="other"))
    use(enabled=True, digest="1")
    assert asked() == []
    use(enabled=False, digest="2")
    assert asked() == []
    machine.rows["sales#1"] = row("sales#1", ended_at=machine.wall)
    assert asked() == []
    use(enabled=True, digest="3")
    assert asked() == ["sales#1"]


@pytest.mark.parametrize("how", ["suspended", "open"])
def test_ends_wait_for_the_trigger_of_a_job_that_is_suspended_or_whose_breaker_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    machine = Machine(tmp_path, monkeypatch)
    event = Trigger(kind="event", name="bad", on=("run.failure",), args={"of": "{trigger.run}"})
    mend = job("mend", triggers=(event,), params={"of": ""}, overlap="allow", breaker=Breaker())
    machine.node.jobs = {**machine.node.jobs, "mend": mend}
    machine.hooks = machine.started(Hook(on=("node.lost",), name="other"))
    machine.look()
    if how == "suspended":
        machine.node.drains.suspended = frozenset(("mend",))
    else:
        kept = State()
        kept.state, kept.retry_at = OPEN, machine.wall + 90.0
        machine.node.drains.holds = {OF_BREAKER + "mend": Hold(by="", at=EPOCH, note=kept.text())}

    def asked() -> list[str]:
        machine.look(60.0)
        return sorted(json.loads(of.args)["of"] for of in machine.triggered)

    machine.rows = {run: row(run, ended_at=machine.wall) for run in ("sales#1", "sales#2")}
    assert asked() == []
    machine.node.drains.suspended = frozenset()
    if how == "open":
        trigger = machine.trigger

        async def opened(of: Registration) -> Reply:
            machine.node.pursuits.pursuits[of.run] = None
            return await trigger(of)

        monkeypatch.setattr(machine, "trigger", opened)
        assert len(asked()) == 1, "one run tries"
        assert len(asked()) == 1
        machine.node.pursuits.pursuits, machine.node.drains.holds = {}, {}
    assert asked() == ["sales#1", "sales#2"]


def test_ends_wait_for_a_trigger_though_many_others_came_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest ends of all jobs hide those of the job that the trigger is about; and all nodes may have been down."""
    machine = Machine(tmp_path, monkeypatch)
    event = Trigger(kind="event", name="bad", on=("run.failure",), jobs=("sales",), args={"of": "{trigger.run}"})
    mend = job("mend", triggers=(event,), params={"of": ""}, overlap="allow")
    machine.node.jobs = {**machine.node.jobs, "mend": mend}
    machine.hooks = machine.started(Hook(on=("node.lost",), name="other"))
    machine.look()
    machine.node.drains.suspended = frozenset(("mend",))
    machine.rows = {f"sales#{number}": row(f"sales#{number}", ended_at=machine.wall) for number in range(1, 301)}
    machine.rows |= {f"noise#{number}": row(f"noise#{number}", ended_at=machine.wall) for number in range(300)}
    machine.look(60.0)
    machine.node.drains.suspended = frozenset()
    with capture_logs() as logs:
        for _ in range(20):
            machine.look(60.0)
    assert sorted(json.loads(of.args)["of"] for of in machine.triggered) == sorted(f"sales#{n}" for n in range(1, 301))
    assert [line for line in logs if line["event"] == "hook.dropped"] == []
