"""What journals tell of a run: read from records, sent to another node, and merged with what the ledger tells."""

from __future__ import annotations

from typing import Any

from coordd.services.views import recorded
from coordd.services.views.timeline import Step

AT = 1_763_683_200.0
RUN = "sales#1"


def election(at: float = AT, **more: Any) -> dict[str, Any]:
    return {
        "type": "election-decided",
        "timestamp": at,
        "hostname": "edge-1",
        "run": RUN,
        "id": f"{RUN}/0",
        "attempt": 0,
        "opened_by": "edge-1.10",
        "succession": ["edge-2.20", "edge-1.10"],
        "abstained": {"edge-3.30": "draining"},
        "silent": ["edge-4.40"],
        **more,
    }


def control(subject: str, **more: Any) -> dict[str, Any]:
    record = {"type": "control", "timestamp": AT + 1.0, "hostname": "edge-1", "method": "run.cancel"}
    return {**record, "subject": subject, "by": "ann", "uid": 1001, **more}


def test_an_election_says_who_stood_and_why_others_did_not() -> None:
    (step,) = recorded.steps([election()], RUN)
    assert step == Step(
        AT,
        "edge-1",
        "elected",
        "attempt 0: edge-2 first, then edge-1; edge-3 abstains: draining; no statement of edge-4",
    )
    (nobody,) = recorded.steps([election(succession=[], silent=[])], RUN)
    assert nobody.detail == "attempt 0: nobody stands; edge-3 abstains: draining"


def test_what_people_did_is_told_of_this_run_alone() -> None:
    records = [
        control(RUN, reason="wrong input"),
        control(f"{RUN}/0: nobody needs it", method="deadletter.discard"),
        control(RUN, reason="größe ✓ \x1b[2J"),
        control("sales#12"),
        control("sales"),
        control(RUN, outcome="refused", method="run.revoke"),
    ]
    assert [(step.what, step.detail) for step in recorded.steps(records, RUN)] == [
        ("run.cancel", "by ann (1001): wrong input"),
        ("deadletter.discard", "by ann (1001): nobody needs it"),
        ("run.cancel", "by ann (1001): größe ✓ \\x1b[2J"),
        ("run.revoke", "refused, by ann (1001)"),
    ]


def test_records_that_cannot_be_read_are_left_out() -> None:
    records: list[dict[str, Any]] = [
        {},
        {"type": "election-decided", "timestamp": AT, "run": RUN},
        election(abstained=["x"]),
        election(at=float("nan"), succession=7),
        {"type": "control", "timestamp": "yesterday", "subject": RUN},
        election(run="sales#12"),
    ]
    assert recorded.steps(records, RUN) == []


def test_the_newest_steps_are_sent_and_long_text_is_cut() -> None:
    many = [control(RUN, timestamp=AT + n, reason="x" * 5000) for n in range(recorded.STEPS_MAX + 10)]
    found = recorded.steps(many, RUN)
    assert len(found) == recorded.STEPS_MAX
    assert found[0].at == AT + 10
    sent = recorded.unpacked(recorded.packed(found))
    assert sent == found
    assert all(len(step.detail) == recorded.TEXT_MAX for step in sent)
    assert len(recorded.packed(found)) < 24 * 1024


def test_an_answer_that_makes_no_sense_is_no_step() -> None:
    for body in (
        "",
        "{}",
        "[[1]]",
        '[["a","b","c","d"]]',
        "[" * 5000,
        '[[-1.0,"a","b","c"]]',
        '[[1e300,"a","b","c"]]',
        f'[[1{"0" * 400},"a","b","c"]]',
    ):
        assert recorded.unpacked(body) == []
    (step,) = recorded.unpacked('[[5.0,"a\\u001b[31m","b","c"]]')
    assert "\x1b" not in step.node, "a terminal must not obey another node"


def test_one_timeline_has_each_thing_once() -> None:
    of_row = [Step(AT, "", "due"), Step(AT + 2.0, "edge-2.20", "granted", "attempt 0")]
    here = recorded.steps([election(), {"type": "task-received", "timestamp": AT + 2.0, "run": RUN}], RUN)
    there = recorded.steps([election(at=AT + 0.3), control(RUN)], RUN)
    merged = recorded.merged(of_row, here, there)
    assert [step.what for step in merged] == ["due", "elected", "run.cancel", "granted"]


def test_a_run_that_the_ledger_has_forgotten_is_told_by_its_events() -> None:
    events = [
        {"type": kind, "timestamp": AT + n, "run": RUN, "attempt": 0, "node": "edge-2.20", "hostname": "edge-2"}
        for n, kind in enumerate(["task-received", "task-started", "task-failed"])
    ]
    assert [(step.node, step.what) for step in recorded.merged([], recorded.steps(events, RUN))] == [
        ("edge-2", "granted"),
        ("edge-2", "started"),
        ("edge-2", "failure"),
    ]
