"""A node in trouble, as people see it: the sentences of `why`, `doctor` and `node list`."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.small_cluster import Lone, job

from coordd.core.breaker import Breaker
from coordd.core.jobs.job import EXEC_DIGEST, After
from coordd.core.ledger.rows import ATTEMPT_COLUMNS, AttemptRow, Row
from coordd.core.ledger.words import NEVER, NEW_RULES, AttemptNumber, Policy
from coordd.core.wire.envelope import ACCEPT, RETIRED, SIGN, EnvelopeError, Key, Keyring
from coordd.core.wire.events import WorkerHeartbeat
from coordd.services.control import doctor
from coordd.services.metrics.unread import Unread
from coordd.services.sealed_bus import SealedBus
from coordd.services.views import timeline
from coordd.services.views.objects import Stop, nodes_view, run_view
from coordd.services.views.why import CALM, Holder, Obstacles, Surroundings, why_job, why_no_job, why_run
from coordd.services.waiting.absent import Absent

DOWN = Surroundings(ledger_error="Connection refused")
RECOVERING = Surroundings(recovering_s=42.0)
OPEN = Surroundings(ledger_error="Connection refused", breaker_open=True, retry_in_s=2.5)
PROBING = Surroundings(ledger_error="Connection refused", breaker_open=True)
DEAF = Surroundings(bus_down=True, bus_error="it blocks")

TROUBLES = [
    (DOWN, "Nothing new starts: the ledger does not answer (Connection refused)."),
    (RECOVERING, "nothing new launches for 42 s"),
    (OPEN, "The ledger's breaker is open, for it has failed again and again: it is tried again in 2.5 s."),
    (PROBING, "it is being tried again."),
    (DEAF, "The bus is down (it blocks): a hash of the run's id decides which node goes first. Runs still start."),
    (Surroundings(bus_down=True), "The bus is down: "),
]


def row(state: str) -> Row:
    made = Row.__new__(Row)
    empty: dict[type, Any] = {str: "", int: 0, float: 0.0}
    for column, kind in Row.__annotations__.items():
        setattr(made, column, empty.get(kind))
    made.run, made.job, made.state, made.policy = "j#1", "j", state, Policy().pack()
    made.attempt = AttemptNumber(state == "retry")
    return made


@pytest.mark.parametrize("around", [CALM, DOWN, RECOVERING])
def test_a_trigger_that_the_ledger_does_not_have_yet_was_triggered(around: Surroundings) -> None:
    said = why_run("j#1", None, [], None, None, around, absent=Absent(True, accepted=True))
    assert said.startswith("j#1 was triggered here, and the ledger does not have it yet.")
    assert ("the ledger does not answer" in said) is (around is DOWN)


@pytest.mark.parametrize(("around", "sentence"), TROUBLES)
@pytest.mark.parametrize("state", ["pending", "retry", "received"])
def test_a_run_that_is_to_come_tells_what_is_wrong(around: Surroundings, sentence: str, state: str) -> None:
    assert sentence in why_run("j#1", row(state), [], None, None, around)
    assert sentence not in why_run("j#1", row(state), [], None, None)


@pytest.mark.parametrize(("around", "sentence"), TROUBLES)
@pytest.mark.parametrize("state", ["success", "failure", "revoked", "started", "missed"])
def test_a_run_that_is_past_all_that_does_not(around: Surroundings, sentence: str, state: str) -> None:
    assert sentence not in why_run("j#1", row(state), [], None, None, around)


@pytest.mark.parametrize(
    ("state", "told"), [("pending", True), ("retry", True), ("received", False), ("missed", False)]
)
def test_a_run_of_a_definition_that_was_replaced_tells_when_it_ends_and_how_to_end_it(state: str, told: bool) -> None:
    said = why_run("j#1", row(state), [], None, None, obstacles=Obstacles(redefined=True))
    assert ("it is missed, 3600 s after it was due. `coordctl run revoke j#1` ends it now." in said) is told
    assert "differs from the registered one" not in why_run("j#1", row(state), [], None, None)


@pytest.mark.parametrize("around", [DOWN, OPEN, PROBING])
def test_without_a_ledger_nobody_knows_the_run(around: Surroundings) -> None:
    said = why_run("j#1", None, [], None, None, around)
    assert said.startswith("Nobody can launch j#1 now. Nothing new starts: the ledger does not answer")


def test_a_ledger_that_forgot_does_not_say_that_there_never_was_such_a_run() -> None:
    assert why_run("j#1", None, [], None, None, RECOVERING).startswith("j#1 is not in the ledger now.")
    assert "has no run" in why_run("j#1", None, [], None, None, DEAF)


@pytest.mark.parametrize(("around", "sentence"), TROUBLES)
def test_a_job_tells_each_trouble_once(around: Surroundings, sentence: str) -> None:
    known = Lone(job("j")).ready().node
    assert why_job(job("j"), None, None, None, "", known, around).count(sentence) == 1
    assert why_no_job("j", "", [], [], "", around).count(sentence) == 1


# ---- a node that is gone


def held(**changes: Any) -> Row:
    made = row("started")
    made.node, made.lease, made.started_at = "edge-3.146", 60.0, 1000.0
    for column, value in changes.items():
        setattr(made, column, value)
    return made


def test_a_run_on_a_lost_node_tells_since_when_and_what_comes() -> None:
    gone = Holder("lost", heard_s=20.0, lost_s=14.0, silent_s=18.0, lease_s=60.0, turn_in_s=44.0)
    said = why_run("j#1", held(), [], None, None, holder=gone)
    for words in (
        "was running on edge-3 since",
        "edge-3 was last heard of 20 s ago and is lost since 14 s",
        "its lease ends in 42 s at the latest",
        "lost, and tried again (this node's turn is in 44 s)",
    ):
        assert words in said
    said = why_run("j#1", held(policy=Policy(on_lost="hold").pack()), [], None, None, holder=gone)
    assert "unknown, and held for a person" in said
    said = why_run("j#1", held(cancel=1, reason="cancelled by ann"), [], None, None, holder=gone)
    assert "after that it is ended: it was cancelled" in said


@pytest.mark.parametrize(
    ("holder", "words"),
    [
        (Holder("", lease_s=60.0), "this node has not heard edge-3 since it started"),
        (Holder("left", 5.0, None, 5.0, 60.0), "edge-3 was last heard of 5 s ago and is left"),
        (
            Holder("alive", 0.1, None, 40.0, 60.0),
            "edge-3 still sends messages, but it has not renewed its lease for 40 s",
        ),
        (Holder("lost", 99.0, 95.0, 61.0, 60.0), "its lease has ended"),
    ],
)
def test_what_is_known_of_a_holder(holder: Holder, words: str) -> None:
    assert words in why_run("j#1", held(), [], None, None, holder=holder)


def test_a_run_on_a_node_that_lives_is_simply_running() -> None:
    said = why_run("j#1", held(), [], None, None, holder=Holder("alive", 0.5, None, 3.0, 60.0))
    assert said == "j#1 is running on edge-3 since 1970-01-01T00:16:40Z (attempt 0)."
    said = why_run(
        "j#1", held(cancel=1, reason="cancelled by ann"), [], None, None, holder=Holder("alive", lease_s=60.0)
    )
    assert "and is to be cancelled (cancelled by ann)" in said


# ---- a fire time without a row


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        (Absent(True), "it was never triggered, or it is older than the history kept"),
        (Absent(False, 900.0), "this node does not know its job's schedule"),
        (Absent(True, 900.0, False, 960.0, now=1e4), "has no such time; the next one after it is 1970-01-01T00:16:00Z"),
        (Absent(True, 900.0, True, 960.0, now=890.0), "it is due in 10 s"),
        (Absent(True, 900.0, True, 960.0, 960.0, "skipped", "skip", 1e4), "was skipped: nobody was there to launch it"),
        (Absent(True, 900.0, True, 960.0, 960.0, "", "skip", 1e4), "it was skipped if no node was there at the time"),
        (Absent(True, 900.0, True, 960.0, 960.0, "", "once", 1e4), "which of these, this node cannot know"),
        (Absent(True, 900.0, True, 960.0, 960.0, "", "all", 1e4), "It is from before the job was first seen"),
        (Absent(True, 900.0, True, 960.0, 840.0, "", "once", 1e4), "it was due, and no node has claimed it yet"),
    ],
)
def test_a_time_that_was_passed_over_is_not_said_never_to_have_been_due(absent: Absent, words: str) -> None:
    said = why_run("j@1970-01-01T00:15:00Z", None, [], None, None, absent=absent)
    assert words in said
    assert ("never due" in said) == (absent.fire_at is not None and not absent.is_fire_time)


# ---- suspended, removed


def test_a_suspended_job_has_no_next_time_as_if_it_would_run() -> None:
    known = Lone(job("j")).ready().node
    said = why_job(job("j"), Stop(None), 900.0, None, "", known)
    assert "Next:" not in said
    assert "it starts only if the suspension ends before that, or at most 3600 s after it" in said
    assert "coordctl job resume j" in why_run(
        "j#1", row("pending"), [], None, None, obstacles=Obstacles(stop=Stop(None))
    )


def test_a_removed_job_tells_of_the_runs_that_it_left() -> None:
    said = why_no_job("j", "", [row("pending"), row("retry"), row("started")], [], "")
    assert "2 runs of it waits" not in said
    assert "2 runs of it wait to be launched" in said
    assert "j#1 is started on  all the same" not in said
    assert "`coordctl run revoke --job j` ends them" in said
    assert "no node starts them" in said
    assert "Only edge-2 may have its file" in why_no_job("j", "", [row("pending")], ["edge-2"], "")
    assert "Did you mean jay?" in why_no_job("j", "", [], [], "jay")
    assert "This node has no job 'j'" in why_run(
        "j#1", row("pending"), [], None, None, obstacles=Obstacles(no_file=True)
    )


def test_a_job_of_coordd_exec_has_no_file_and_its_last_run_is_explained() -> None:
    last = row("failure")
    last.digest = f"{EXEC_DIGEST}1"
    said = why_no_job("lock", "", [last], [], "", last_word="lock#1 failed on a.")
    assert said == (
        "lock is a job of `coordd exec` or coordd.single: it has no file, and runs where it is called. Last: lock#1 "
        "failed on a."
    )


def test_a_parent_that_is_not_here_is_named() -> None:
    known = Lone(job("sales")).ready().node
    child = job("child", after=After(("sales", "nosuch")))
    assert "This node has no job nosuch, after which it runs" in why_job(child, None, None, None, "", known)


# ---- node list


@pytest.mark.parametrize(("outcome", "state"), [("success", "success"), ("failed", "failure")])
def test_a_run_that_a_person_has_resolved_says_so_and_has_no_runtime(outcome: str, state: str) -> None:
    resolved = row(state)
    resolved.node, resolved.started_at, resolved.ended_at, resolved.args, resolved.digest = "a.1", 50.0, 90.0, "{}", "d"
    resolved.created_at = resolved.due = resolved.fire_at = 40.0
    resolved.reason = f"resolved as {outcome} by root; its own end is not known, because its lease lapsed"
    resolved.exit_code = None
    assert why_run("j#1", resolved, [], None, None).startswith(
        f"j#1 was resolved as {outcome} by root at 1970-01-01T00:01:30Z; its own end on a is not known, because its"
    )
    assert run_view(resolved, redacted=False)["runtime_s"] is None
    resolved.reason, resolved.exit_code = "", 0
    assert "resolved" not in why_run("j#1", resolved, [], None, None)
    assert run_view(resolved, redacted=False)["runtime_s"] == 40.0


@pytest.mark.parametrize(
    ("state", "reason", "step"),
    [
        ("unknown", "its lease lapsed", {"at": None, "node": "a.1", "what": "unknown", "detail": "its lease lapsed"}),
        (
            "success",
            "resolved as success by root",
            {"at": "1970-01-01T00:01:30Z", "node": None, "what": "resolved", "detail": "as success by root"},
        ),
    ],
)
def test_the_timeline_tells_that_an_end_is_not_known_and_who_resolved_it(state: str, reason: str, step: Any) -> None:
    of = row(state)
    of.node, of.reason, of.exit_code, of.created_at, of.started_at = "a.1", reason, None, 40.0, 50.0
    of.ended_at = 90.0 if state == "success" else 0.0
    attempt = AttemptRow([getattr(of, column) for column in ATTEMPT_COLUMNS])
    assert timeline.shown(timeline.of_run(of, [attempt]))[-1] == step


def test_a_node_that_hears_nobody_takes_the_others_for_lost() -> None:
    known = Lone(job("j"), peers=("b.1", "c.1")).ready().node
    known.ctx.membership.isolate(True)
    listed = nodes_view(known, 0, 0.0)
    assert [(node["hostname"], node["state"]) for node in listed] == [("a", "alive"), ("b", "lost"), ("c", "lost")]
    assert listed[0]["isolated"] is True
    known.ctx.membership.isolate(False)
    assert {node["state"] for node in nodes_view(known, 0, 0.0)} == {"alive"}


def test_a_node_that_has_always_been_alone_is_not_isolated() -> None:
    known = Lone(job("j")).ready().node
    known.ctx.membership.isolate(True)
    assert nodes_view(known, 0, 0.0)[0]["isolated"] is False
    assert states(doctor.node_checks(known)) == {"nodes": "ok"}


# ---- doctor


class Bus:
    """A bus of which only the state is read."""

    url, state, error = "amqp://mq", "connected", ""

    def statistics(self) -> dict[str, int]:
        return {}


def states(checks: list[doctor.Check]) -> dict[str, str]:
    return {check["check"]: check["state"] for check in checks}


def sealed(made: str) -> SealedBus:
    keys = (Key("old", RETIRED, b""), Key("k1", SIGN, b"s" * 32, made), Key("k2", ACCEPT, b"t" * 32, made))
    return SealedBus(Bus(), Keyring(keys), "c", inbox="a.1")  # type: ignore[arg-type]  # only looked at


def test_the_keyring_says_which_key_signs_and_how_old_it_is() -> None:
    now = time.mktime((2026, 12, 11, 0, 0, 0, 0, 0, 0)) - time.timezone
    keys, refused = doctor.signing_checks(sealed("2026-12-01T00:00:00Z"), now)
    assert (keys["state"], refused["state"]) == ("ok", "ok")
    assert "k1 signs, made 2026-12-01T00:00:00Z, 10 days ago; accepted too: k2" in keys["text"]
    keys, _ = doctor.signing_checks(sealed("2024-12-01T00:00:00"), now)
    assert (keys["state"], keys["advice"]) == ("warn", "coordd keys rotate")
    assert doctor.signing_checks(sealed(""), now)[0]["state"] == "ok"


def test_refused_envelopes_are_told_by_reason() -> None:
    bus = sealed("")
    for kind in ("unknown_key", "unknown_key", "bad_mac"):
        bus._refuse(EnvelopeError(kind), b"0123456789")
    refused = doctor.signing_checks(bus, 0.0)[1]
    assert refused["state"] == "warn"
    assert "2 times: no key of that id in the keyring" in refused["text"]
    assert "1 times: its MAC is wrong" in refused["text"]
    assert re.search(r"; the newest at 2\d{3}-.*Z, 10 bytes: its MAC is wrong", refused["text"])


def test_messages_that_nobody_could_decode_are_told() -> None:
    unread = Unread("message.refused")
    assert doctor.unread_check(unread, 0)["state"] == "ok"
    unread.add("no MessagePack", b"secret", 1)
    found = doctor.unread_check(unread, 1)
    assert found["state"] == "warn"
    assert re.fullmatch(r"1 could not be decoded; the newest at .*Z, 6 bytes: no MessagePack", found["text"])


def test_a_memory_that_others_of_the_user_can_read_is_told(tmp_path: Path) -> None:
    file = tmp_path / "mem"  # the kernel gives it to root when the process is closed
    file.touch()
    owner = file.stat().st_uid
    assert doctor.memory_check(str(file), owner + 1)["state"] == "ok"
    assert doctor.memory_check(str(file), 0)["state"] == "ok"
    os.chown(file, 4711, -1)
    assert "other processes of uid 4711, jobs too" in doctor.memory_check(str(file), 4711)["text"]
    assert doctor.memory_check(f"{file}.gone", 4711)["state"] == "warn"


def test_without_keys_there_is_a_warning() -> None:
    (found,) = doctor.signing_checks(Bus(), 0.0)  # type: ignore[arg-type]  # only looked at
    assert found["state"] == "warn"
    assert "unsigned = true" in found["text"]


@pytest.mark.parametrize(
    ("urls", "state", "words"),
    [
        (("amqps://mq", "rediss://r"), "ok", "used, certificates are verified"),
        (("amqp://127.0.0.1", "redis://localhost"), "ok", "amqp, redis: its traffic stays on this machine"),
        (("amqps://m1, amqp://m2", "rediss://r"), "warn", "m2 is not encrypted"),
        (("amqps://mq", "redis+sentinel://s1,s2/m/0"), "warn", "s1, s2 is not encrypted"),
        (("amqps://mq?no_verify_ssl=1", "rediss://r"), "warn", "believes any server's certificate"),
    ],
)
def test_what_is_encrypted(urls: tuple[str, ...], state: str, words: str) -> None:
    (found,) = doctor.tls_checks(*urls)
    assert (found["state"], words in found["text"]) == (state, True)


@pytest.mark.parametrize(
    ("skew_s", "blur_s", "state"),
    [(0.1, 0.01, "ok"), (-5.0, 0.0, "warn"), (5.0, 4.0, "ok"), (31.0, 0.5, "fail"), (-3600.0, 0.0, "fail")],
)
def test_a_clock_that_is_off(skew_s: float, blur_s: float, state: str) -> None:
    found = doctor.skew_check(skew_s, blur_s)
    assert found["state"] == state
    assert ("ahead of" if skew_s > 0 else "behind") in found["text"]


def test_doctor_says_which_rules_are_in_force_and_who_holds_the_new_ones_back() -> None:
    lone = Lone(job("j"), peers=("b.1",)).ready()
    node = lone.node
    node.ctx.identity_from = 0.0
    lone.hear("b.1", WorkerHeartbeat(state="ready", rules=NEW_RULES))
    assert doctor.rules_check(node) == doctor.check("rules", "ok", "the new rules (2) are in force")

    lone.hear("c.1", WorkerHeartbeat(state="ready"))  # an older version does not say
    told = doctor.rules_check(node)
    assert (told["state"], told["text"]) == (
        "warn",
        "the new rules (2) are in force; these have an older version, so they launch nothing: c.1",
    )

    node.ctx.identity_from = NEVER
    told = doctor.rules_check(node)
    assert (told["state"], told["text"]) == (
        "warn",
        "the old rules (1) are in force; these nodes hold the new ones back: c.1",
    )
    assert "upgrade" in told["advice"]
    lone.hear("c.1", WorkerHeartbeat(state="ready", rules=NEW_RULES))
    assert doctor.rules_check(node)["state"] == "ok"


def test_nodes_with_other_jobs_are_named() -> None:
    lone = Lone(job("j"), peers=("b.1",)).ready()
    known = lone.node
    assert states(doctor.node_checks(known)) == {"nodes": "ok", "jobs digest": "ok"}
    lone.hear("c.1", WorkerHeartbeat(state="ready", jobs_digest="another"))
    digest = doctor.node_checks(known)[1]
    assert (digest["state"], digest["text"]) == ("warn", "c: their job files differ from those here")
    known.ctx.membership.proof_of_death("c.1")
    checks = doctor.node_checks(known)
    assert states(checks) == {"nodes": "warn", "jobs digest": "ok"}
    assert "1 lost" in checks[0]["text"]
    known.ctx.membership.isolate(True)
    assert "hears nobody" in doctor.node_checks(known)[0]["text"]


def test_a_node_that_cannot_write_fails_with_each_cause_whatever_else_keeps_it_from_starting_runs() -> None:
    node = Lone(job("j")).ready().node
    assert states(doctor.impaired_checks(node)) == {"impaired": "ok"}
    node.runtime_failed("its runtime directory /run/coordd cannot be written: Permission denied")
    node.ctx.braked, node.ctx.state = "another ledger", "draining"
    (told,) = doctor.impaired_checks(node)
    assert (told["check"], told["state"]) == ("impaired", "fail")
    assert told["text"] == (
        "this node starts nothing itself: its runtime directory /run/coordd cannot be written: Permission denied"
    )
    node.impaired("its journal cannot be written: No space left on device")
    assert [one["state"] for one in doctor.impaired_checks(node)] == ["fail", "fail"]


def test_a_node_that_stands_aside_is_a_warning() -> None:
    node = Lone(job("j")).ready().node
    node.ctx.aside = "3 runs failed here"
    assert states(doctor.impaired_checks(node)) == {"stands aside": "warn"}


def test_a_job_whose_program_is_absent_here_is_a_warning_and_one_that_may_not_run_fails() -> None:
    said = doctor.job_checks({"a", "b", "c"}, {"bad": ["no argv"], "a": ["a remark"]}, {"c": "root forbids it"}, {
        "b": "/opt/x is not on this machine", "c": "root forbids it",
    })  # fmt: skip
    assert states(said) == {
        "job a": "warn", "job b": "warn", "job bad": "fail", "job c": "fail", "jobs loaded": "ok",
    }  # fmt: skip
    assert said[1]["advice"] == "the job is fine: mend it on this node; others start it"


def test_an_open_breaker_says_why_and_until_when() -> None:
    bus, ledger = Breaker("bus"), Breaker("ledger")
    assert states(doctor.breaker_checks((bus, ledger), 0.0)) == {"breakers": "ok"}
    for _ in range(3):
        ledger.failed(ledger.allow(100.0), "Connection refused", 100.0, 1.0)
    (found,) = doctor.breaker_checks((bus, ledger), 100.1)
    assert found["check"] == "breaker ledger"
    assert "open after 3 failures: Connection refused" in found["text"]
    assert "in 0.4 s" in found["advice"]


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({}, "ok", "no message waits"),
        ({"waiting": 5, "oldest_s": 61.0}, "warn", "5 messages wait for the bus, the oldest for 61 s"),
        ({"given_up": 2}, "warn", "2 were given up"),
        ({"waiting": 1, "error": "full"}, "warn", "the disk refuses them: full"),
    ],
)
def test_what_waits_for_the_bus(changes: dict[str, Any], state: str, words: str) -> None:
    about = {"waiting": 0, "oldest_s": 0.0, "given_up": 0, "error": None, **changes}
    found = doctor.backlog_check(about)
    assert (found["state"], words in found["text"]) == (state, True)


def test_nodes_are_called_by_their_names_without_the_number_of_a_process() -> None:
    made = row("failure")
    made.node, made.reason = "edge-3.146", "its lease lapsed; last held by edge-3.146; edge-3.1467 and edge-3.146.x.org"
    said = why_run("j#1", made, [], None, None)
    assert "failed on edge-3 at" in said
    assert "last held by edge-3; edge-3.1467 and edge-3.146.x.org" in said


def test_the_doctor_names_each_bad_row_and_what_ends_it() -> None:
    known = Lone(job("j")).ready().node
    assert states(doctor.row_checks(known)) == {"ledger rows": "ok"}
    known.ctx.bad_rows = {"j": "the row of the job j is bad: fence: x", "j#1": "the row of j#1 is bad: lease: x"}
    of_job, of_run = doctor.row_checks(known)
    assert (of_job["state"], of_run["state"]) == ("fail", "fail")
    assert "fence: x" in of_job["text"]
    assert "no run of the job j starts" in of_job["text"]
    assert "coordctl job suspend j " in of_job["advice"]
    assert "coordctl run revoke j#1" in of_run["advice"]


@pytest.mark.parametrize(
    ("blocks", "files", "free", "states"),
    [
        (10**6, 10**6, 10**5, ["ok", "ok"]),
        (10**6, 10**6, 1000, ["ok", "fail"]),  # inodes are used up before the room is
        (10**6, 0, 0, ["ok", "ok"]),  # a file system that has no such number (btrfs)
        (100, 10**6, 10**5, ["ok", "fail"]),
    ],
)
def test_a_disk_without_room_or_without_inodes_is_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, blocks: int, files: int, free: int, states: list[str]
) -> None:
    about = os.statvfs_result((4096, 4096, 10**7, blocks, blocks, files, free, free, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: about)
    said = doctor.room_checks(str(tmp_path))
    assert [one["state"] for one in said] == states
    assert ("inodes" in said[1]["text"]) is bool(files)


def test_the_doctor_says_how_many_bad_rows_and_open_breakers_it_does_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It named five, and ended as if these were all."""
    known = Lone(job("j")).ready().node
    known.ctx.bad_rows = {f"j#{number}": "bad" for number in range(7)}
    checks = doctor.row_checks(known)
    assert (len(checks), checks[-1]["text"]) == (6, "2 more rows are bad")
    known.ctx.bad_rows = {f"j#{number}": "bad" for number in range(5)}
    assert len(doctor.row_checks(known)) == 5

    def of_jobs(count: int) -> dict[str, Any]:
        one = SimpleNamespace(name="job:j", is_open=True, job=known.jobs["j"], sentence=lambda: "open")
        return {f"j{number}": one for number in range(count)}

    for count, texts in ((5, ["open"] * 5), (7, ["open"] * 5 + ["2 more breakers of jobs are open"])):
        monkeypatch.setattr(doctor, "of_jobs", lambda *_, count=count: of_jobs(count))
        assert [one["text"] for one in doctor.job_breaker_checks(known)] == texts


def test_a_job_that_comes_from_elsewhere_is_not_looked_for_in_a_directory() -> None:
    source = "The jobs of this node come from redis: revision 11 is in force (coordctl config list)."
    assert why_no_job("j", "", [], [], "jay", source=source) == f"This node has no job 'j'. {source} Did you mean jay?"
    assert why_no_job("j", "j.toml: bad", [], [], "", source=source).endswith(f"j.toml: bad {source}")
    assert "in its jobs directory" in why_no_job("j", "", [], [], "")
    known = Lone(job("j")).ready().node
    assert source in why_job(job("j"), None, None, None, "", known, source=source)
