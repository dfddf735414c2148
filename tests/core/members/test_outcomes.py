"""What a node knows of the ends of runs: what it has heard, what a newcomer is told, and what nobody believes."""

from __future__ import annotations

import msgspec
import pytest
from support.small_cluster import EPOCH, Lone, job

from coordd.core.members import heartbeat
from coordd.core.members.outcomes import OUTCOME_AGE_MAX_S, OUTCOMES_MAX, REASON_LENGTH_MAX, packet_of
from coordd.core.wire import codec
from coordd.core.wire.events import (
    MESSAGE_BYTES_MAX,
    PROTOCOL_MAJOR,
    ControlRevoke,
    Packet,
    RunOutcome,
    TaskFailed,
    TaskReceived,
    TaskRejected,
    TaskRetried,
    TaskSucceeded,
    WorkerHello,
    WorkerHelloReply,
)


def succeeded(run: str = "sales#1", token: int = 5, node: str = "b.1", **more: object) -> TaskSucceeded:
    return TaskSucceeded(uuid="u", run=run, name="sales", token=token, nonce="n", node=node, **more)  # type: ignore[arg-type]  # fields of one test


def outcome(run: str = "sales#1", kind: str = "task-succeeded", **more: object) -> RunOutcome:
    return RunOutcome(kind, run, 7, EPOCH - 60.0, **{"age": 60.0, "token": 5, "node": "c.1", **more})  # type: ignore[arg-type]  # fields of one test


def replies(lone: Lone) -> list[WorkerHelloReply]:
    return [event for _, event in lone.unicasts if isinstance(event, WorkerHelloReply)]


def told(lone: Lone) -> list[RunOutcome]:
    return [one for reply in replies(lone) for one in reply.outcomes]


# ---- what it hears


def test_the_end_of_a_run_is_known_until_it_goes_on() -> None:
    lone = Lone(job()).ready()

    lone.hear("b.1", TaskFailed(uuid="u", run="sales#1", name="sales", token=5, nonce="n", node="b.1", reason="exit 3"))
    known = lone.node.outcomes.of("sales#1")
    assert known is not None
    assert (known.outcome.kind, known.outcome.reason, known.told_by) == ("task-failed", "exit 3", "")

    lone.hear("b.1", TaskReceived(uuid="u", run="sales#1", name="sales", attempt=1, token=6, nonce="m", node="b.1"))
    assert lone.node.outcomes.of("sales#1") is None


def test_a_late_event_of_an_earlier_attempt_changes_nothing() -> None:
    lone = Lone(job()).ready()
    lone.hear("b.1", succeeded(token=6))

    lone.hear("b.1", TaskFailed(uuid="u", run="sales#1", name="sales", token=5, nonce="n", node="b.1"))
    lone.hear("b.1", TaskRetried(uuid="u", run="sales#1", name="sales", token=5, nonce="n", node="b.1"))

    known = lone.node.outcomes.of("sales#1")
    assert known is not None
    assert known.outcome.kind == "task-succeeded"


def test_who_revokes_a_run_tells_it_and_knows_it() -> None:
    lone = Lone(job()).ready()

    lone.do(lone.node.revoked, ("sales@2026-01-01T00:00:00Z",), "revoked by ann")

    [said] = [event for event in lone.said if isinstance(event, ControlRevoke)]
    assert (said.run, said.reason) == ("sales@2026-01-01T00:00:00Z", "revoked by ann")
    known = lone.node.outcomes.of(said.run)
    assert known is not None
    assert (known.outcome.kind, known.outcome.reason, known.outcome.at) == ("task-revoked", "revoked by ann", EPOCH)


def test_a_revoke_that_is_heard_is_known() -> None:
    lone = Lone(job()).ready()

    lone.hear("b.1", ControlRevoke(run="sales#1", reason="revoked by ann", timestamp=EPOCH))

    known = lone.node.outcomes.of("sales#1")
    assert known is not None
    assert known.outcome.kind == "task-revoked"


def test_the_oldest_are_forgotten() -> None:
    lone = Lone(job()).ready()

    for number in range(OUTCOMES_MAX + 1):
        lone.hear("b.1", succeeded(f"sales#{number}"))

    assert lone.node.outcomes.of("sales#0") is None
    assert lone.node.outcomes.of("sales#1") is not None


# ---- what a newcomer is told


def test_a_newcomer_is_told_ends_and_revokes() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.hear("b.1", succeeded())
    lone.hear("b.1", TaskRejected(uuid="u", run="sales#2", name="sales", node="b.1", result="missed", reason="late"))
    lone.do(lone.node.revoked, ("sales#3",), "revoked by ann")
    lone.wait(30.0)

    lone.hear("c.1", WorkerHello())

    [reply] = replies(lone)
    assert [(one.run, one.kind, one.result) for one in reply.outcomes] == [
        ("sales#3", "task-revoked", ""),
        ("sales#2", "task-rejected", "missed"),
        ("sales#1", "task-succeeded", ""),
    ]
    assert reply.revoked == ("sales#3",)
    assert all(30.0 <= one.age < 31.0 for one in reply.outcomes)


def test_what_is_older_than_an_hour_is_not_told() -> None:
    lone = Lone(job()).ready()
    lone.hear("b.1", succeeded())
    lone.wait(OUTCOME_AGE_MAX_S + 1.0)

    lone.hear("c.1", WorkerHello())

    assert told(lone) == []


def test_they_are_told_in_as_many_messages_as_they_take() -> None:
    lone = Lone(job()).ready()
    job_name = "j" * 64
    for number in range(heartbeat.REPLY_TOKENS_MAX):
        lone.node.ctx.saw_token(f"{'t' * 60}-{number:03}", 2**52)
    for number in range(OUTCOMES_MAX):
        lone.hear("b.1", succeeded(f"{job_name}#{'i' * 124}{number:04}", reason="ü" * 1000, exit_code=2**31))

    lone.hear("c.1", WorkerHello())

    assert len(told(lone)) == OUTCOMES_MAX
    assert {len(one.reason) for one in told(lone)} == {REASON_LENGTH_MAX}
    assert len(replies(lone)) > 1
    for reply in replies(lone):
        assert len(codec.encode(Packet(PROTOCOL_MAJOR, "default", "a", 1, "1-a", 0, 0, [reply]))) < MESSAGE_BYTES_MAX


def test_in_a_cluster_of_many_only_the_nearest_tell() -> None:
    names = [f"n{number}.1" for number in range(12)]
    tellers = 0
    for name in names:
        hostname = name.partition(".")[0]
        lone = Lone(job(), name=hostname, peers=tuple(other for other in names if other != name)).ready()
        lone.hear(names[names.index(name) - 1], succeeded())
        lone.hear("new.1", WorkerHello())
        assert replies(lone)  # all of them answer
        tellers += bool(told(lone))

    assert tellers == heartbeat.WATCHERS


# ---- what it is told


def test_what_a_reply_tells_is_known_with_the_teller() -> None:
    lone = Lone(job())
    lone.do(lone.node.start, ("b.1",))

    lone.hear(
        "b.1", WorkerHelloReply(to="a.1", state="ready", outcomes=(outcome(), outcome("sales#2", "task-revoked")))
    )

    known = lone.node.outcomes.of("sales#1")
    assert known is not None
    assert (known.told_by, known.outcome.node) == ("b.1", "c.1")
    assert known.age_s(lone.now) == 60.0
    assert [one.run for one in lone.node.outcomes.learned()] == ["sales#1", "sales#2"]
    assert lone.node.outcomes.learned() == []


def test_it_is_told_on_with_its_whole_age() -> None:
    lone = Lone(job()).ready()
    lone.hear("b.1", WorkerHelloReply(to="a.1", state="ready", outcomes=(outcome(age=100.0),)))
    lone.wait(20.0)

    lone.hear("d.1", WorkerHello())

    [one] = told(lone)
    assert 120.0 <= one.age < 121.0


def test_what_was_heard_counts_more_than_what_is_told() -> None:
    lone = Lone(job()).ready()
    lone.hear("b.1", succeeded())

    lone.hear("b.1", WorkerHelloReply(to="a.1", state="ready", outcomes=(outcome(kind="task-failed", token=9),)))
    known = lone.node.outcomes.of("sales#1")
    assert known is not None
    assert known.outcome.kind == "task-succeeded"

    # and the other way round: what is heard replaces what was told
    lone.hear("b.1", WorkerHelloReply(to="a.1", state="ready", outcomes=(outcome("sales#2", "task-failed", token=9),)))
    lone.hear("b.1", succeeded("sales#2", token=5))
    known = lone.node.outcomes.of("sales#2")
    assert known is not None
    assert (known.outcome.kind, known.told_by) == ("task-succeeded", "")


def test_of_two_tellers_the_later_attempt_counts() -> None:
    lone = Lone(job()).ready()
    lone.hear("b.1", WorkerHelloReply(to="a.1", state="ready", outcomes=(outcome(kind="task-failed", token=5),)))
    lone.hear("c.1", WorkerHelloReply(to="a.1", state="ready", outcomes=(outcome(token=6, attempt=1),)))
    lone.hear("d.1", WorkerHelloReply(to="a.1", state="ready", outcomes=(outcome(kind="task-failed", token=5),)))

    known = lone.node.outcomes.of("sales#1")
    assert known is not None
    assert (known.outcome.token, known.told_by) == (6, "c.1")


@pytest.mark.parametrize(
    "lie",
    [
        outcome(kind="task-started"),
        outcome(kind="worker-offline"),
        outcome(run="sales"),
        outcome(run=""),
        outcome(run="no job#1"),
        outcome(run="sales#\x1b[31m"),
        outcome(run="sales#" + "x" * 300),
        outcome(age=-1.0),
        outcome(age=OUTCOME_AGE_MAX_S + 1),
        outcome(node="b\u202e.1"),
        outcome(reason="x" * (REASON_LENGTH_MAX + 1)),
    ],
    ids=lambda one: f"{one.kind} {one.run[:8]!r} {one.age} {one.node!r} {len(one.reason)}",
)
def test_what_no_honest_node_says_is_not_believed(lie: RunOutcome) -> None:
    lone = Lone(job()).ready()

    lone.hear("b.1", WorkerHelloReply(to="a.1", state="ready", outcomes=(lie, outcome("sales#2"))))

    assert lone.node.outcomes.of(lie.run) is None
    assert lone.node.outcomes.of("sales#2") is not None
    assert [notice.fields["peer"] for notice in lone.notices if notice.event == "outcome.not_believed"] == ["b.1"]


def test_the_end_of_a_hook_s_run_is_believed_too() -> None:
    lone = Lone(job()).ready()

    lone.hear("b.1", WorkerHelloReply(to="a.1", state="ready", outcomes=(outcome("hook~page#run.failure.1"),)))

    assert lone.node.outcomes.of("hook~page#run.failure.1") is not None


def test_a_liar_fills_nothing_up() -> None:
    lone = Lone(job()).ready()
    lone.hear("b.1", succeeded())

    for part in range(5):
        many = tuple(outcome(f"sales#{part}-{number}") for number in range(4096))
        lone.hear("b.1", WorkerHelloReply(to="a.1", state="ready", outcomes=many))

    assert lone.node.outcomes.of("sales#1") is not None
    assert len(lone.node.outcomes.learned()) <= OUTCOMES_MAX
    lone.hear("c.1", WorkerHello())
    assert len(told(lone)) <= OUTCOMES_MAX
    assert "sales#1" in {one.run for one in told(lone)}


@pytest.mark.parametrize("wrong", [{"token": -1}, {"at": float("nan")}, {"kind": 5}, {"attempt": 2**60}], ids=str)
def test_a_value_out_of_its_range_drops_the_event_and_no_other(wrong: dict[str, object]) -> None:
    reply = WorkerHelloReply(to="a.1", state="ready", outcomes=(msgspec.structs.replace(outcome(), **wrong),))
    packet = Packet(PROTOCOL_MAJOR, "default", "b", 1, "1-b", 0, 0, [reply, WorkerHello()])

    read, dropped = codec.decode(codec.encode(packet))

    assert dropped == 1
    assert [type(event) for event in read.events] == [WorkerHello]


# ---- as an event


@pytest.mark.parametrize("node", ["c.12", "c.example.org.12", "", "c", "c.x", "c." + "9" * 40], ids=str)
def test_it_is_shown_as_an_event_of_its_node(node: str) -> None:
    packet = packet_of(outcome(node=node, reason="fine"), "default")
    [event] = packet.events

    assert isinstance(event, TaskSucceeded)
    assert (event.run, event.name, event.timestamp, event.reason) == ("sales#1", "sales", EPOCH - 60.0, "fine")
    assert (packet.hostname, packet.pid) == {"c.12": ("c", 12), "c.example.org.12": ("c.example.org", 12)}.get(
        node, (node.rpartition(".")[0], 0)
    )
    assert packet.incarnation == ""
