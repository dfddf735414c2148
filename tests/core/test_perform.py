"""The order in which a ``Ready`` is performed, and what a full disk causes: the same for every shell."""

from collections.abc import Callable
from typing import Any

import pytest
from support.small_cluster import MONO, Lone, Noting, asked_for, job

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import ListOpen
from coordd.core.ledger.words import UNAVAILABLE, AttemptNumber, Token
from coordd.core.perform import perform, pump
from coordd.core.ready import Elected, Launch, LedgerRequest, Notice, Ready, Reply
from coordd.core.wire.events import TaskReceived

LAUNCH = Launch("sales#1", "sales", AttemptNumber(0), Token(7), "n", 0.0, "{}", MONO + 60, 60.0, digest="d1")

ORDER = [
    "save_mark", "save_pin", "save_definitions", "journal", "save_alarms", "keep_request", "forget_request",
    "ask", "launch", "cancel", "publish", "send", "elected", "reply", "log", "state",
]  # fmt: skip


class Steps:
    """A shell that records each step and its arguments."""

    def __init__(self, **answers: str) -> None:
        self.done: list[str] = []
        self.given: dict[str, Any] = {}
        self.answers = answers

    def __getattr__(self, step: str) -> Callable[..., str]:
        def do(*args: Any, **_named: Any) -> str:
            self.done.append(step)
            self.given[step] = args
            return self.answers.get(step, "")

        return do


def everything() -> Ready:
    """A ``Ready`` with every field except the end."""
    ready = Ready()
    ready.clock_mark, ready.pin, ready.definitions, ready.alarms_changed = 9, "l1", {}, True
    received = TaskReceived(uuid="u", run="sales#1", name="sales", attempt=0, token=7)
    ready.journal, ready.messages, ready.unicasts = [received], [received], [("b.1", received)]
    ready.requests_kept, ready.requests_done = [asked_for("sales#1")], ["sales#2"]
    ready.ledger, ready.launches, ready.cancels = [LedgerRequest(1, ListOpen())], [LAUNCH], [("sales#3", "why")]
    ready.elected, ready.replies = [Elected("e", "drill", None)], [Reply(4, {"id": "sales#1"})]
    ready.notices, ready.state = [Notice("node.joined", {})], "ready"
    return ready


def test_everything_is_done_in_this_order() -> None:
    steps = Steps()

    perform(everything(), steps)  # type: ignore[arg-type]  # every step of a shell, by __getattr__

    assert steps.done == ORDER


def test_a_node_that_must_stop_does_nothing_more() -> None:
    steps, ready = Steps(), everything()
    ready.fatal = "another node has this name"

    assert perform(ready, steps) is None  # type: ignore[arg-type]  # every step of a shell, by __getattr__
    assert steps.done == ["stop"]


def test_nothing_is_launched_without_its_intent_and_the_others_hear_of_it() -> None:
    steps = Steps(journal="no space")

    outcome = perform(everything(), steps)  # type: ignore[arg-type]  # every step of a shell, by __getattr__

    assert outcome == ("no space", [LAUNCH], [])
    assert [step for step in ORDER if step not in steps.done] == ["launch"]


def test_what_the_disk_does_not_keep_is_not_accepted() -> None:
    steps = Steps(keep_request="no space")

    outcome = perform(everything(), steps)  # type: ignore[arg-type]  # every step of a shell, by __getattr__

    assert outcome == ("", [], ["sales#1"])
    (reply,) = steps.given["reply"]
    assert (reply.id, reply.kind) == (4, "unavailable")
    assert "no space" in reply.message


class Full(Noting):
    """A shell whose disk is full."""

    def journal(self, events: Any, *, sync: bool) -> str:
        return "no space"

    def keep_request(self, of: Any) -> str:
        return "no space"


@pytest.mark.parametrize("full", [True, False])
def test_a_trigger_that_no_disk_keeps_is_forgotten(full: bool) -> None:
    lone = Lone(job("sales")).ready()
    shell = Full(lone) if full else Noting(lone)
    lone.node.trigger(asked_for("sales#1", job("sales")), 1, lone.now)
    pump(lone.node, shell)
    (request,) = lone.questions("register")

    lone.node.ledger_answered(request.id, Answer(UNAVAILABLE), MONO, lone.now)
    pump(lone.node, shell)

    assert [reply.kind for reply in lone.replies] == (["unavailable"] if full else [""])
    assert bool(lone.node.requests) is not full


def test_a_journal_that_takes_lines_again_frees_what_was_given_back_for_it() -> None:
    lone = Lone(job("sales")).ready()
    lone.node.ctx.launch_problems = {"other": "there is no java"}
    lone.node.ctx.out.launches.append(LAUNCH)
    lone.node.ctx.record(TaskReceived(uuid="u", run="sales#1", name="sales", attempt=0, token=7), lone.now, sync=True)
    pump(lone.node, Full(lone))
    assert lone.launches == []
    assert [one.request.op for one in lone.asked] == ["report"]
    assert set(lone.node.ctx.launch_problems) == {"other", "sales"}

    lone.node.ctx.record(TaskReceived(uuid="u", run="sales#1", name="sales", attempt=1, token=8), lone.now, sync=True)
    pump(lone.node, Noting(lone))

    assert (lone.node.ctx.impaired, lone.node.ctx.launch_problems) == ("", {"other": "there is no java"})
