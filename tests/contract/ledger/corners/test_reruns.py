"""A parent that is run once more with its children: each of them runs once more after its parents' new ends, once."""

from __future__ import annotations

from typing import Any

import pytest
from support.ledger_calls import EPOCH, Nodes, swept

from contract.ledger.corners.both import Both, restore
from coordd.core.jobs.after import parents_of, rerun_of
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.backfill.rule import UNSETTLED_RETRY_S
from coordd.core.ledger.limits.rule import LIMIT_RETRY_S
from coordd.core.ledger.requests import Activate, Keep, Register, Replay, Rerun, Revoke, Settle, Suspend
from coordd.core.ledger.rerun.plan import Item, Runs, text_of
from coordd.core.ledger.rows import ALL, OF_RERUN, is_backfill
from coordd.core.ledger.steps import CHILDREN_KEPT_S
from coordd.core.ledger.words import ABSENT, AttemptNumber, Policy

ROOT, OTHER, CHILD, GRANDCHILD = "sales#1", "other#1", "third#1", "fourth#1"
KEY = OF_RERUN + ROOT
ONCE: dict[str, Any] = {"attempts": 1, "relaunches": 0, "delay_s": 0.0, "overlap": "allow"}


@pytest.fixture(autouse=True)
def activated(nodes: Nodes) -> None:
    for job in ("sales", "other", "third", "fourth"):
        nodes.ask(Activate(job=job, digest="d1", schedule="s1", how="new", by="ann"))


def of(nodes: Nodes, run: str, **more: Any) -> Any:
    return nodes.of(run, **{**ONCE, **more})


def after(run: str, *parents: str, on: str = "success", any: bool = False, count: int = 0) -> Item:  # noqa: A002 - the word of `after`
    return Item(Runs(run, count), on, any, tuple([(Runs(one),) for one in parents]))


def ends(nodes: Nodes, run: str, state: str = "success", attempt: int = 0, **more: Any) -> None:
    nodes.clock.step(1.0)
    grant = nodes.started(of(nodes, run, **more), attempt, nonce=f"{run}/{attempt}")
    nodes.clock.step(1.0)
    nodes.report(grant, state, 0 if state == "success" else 1)


def replay(
    nodes: Nodes,
    *items: Item,
    attempt: int = 0,
    run: str = ROOT,
    by: str = "ann",
    whole: bool = False,
    policy: Policy | None = None,
) -> Answer:
    packed, number = (policy or Policy(**ONCE)).pack(), AttemptNumber(attempt)
    children = text_of(list(items))
    return nodes.ask(Replay(run=run, attempt=number, digest="d1", policy=packed, by=by, children=children, whole=whole))


def ask(nodes: Nodes, run: str = CHILD, root: str = ROOT, **more: Any) -> Answer:
    return nodes.ask(Rerun(root=root, of=of(nodes, run, **more)))


def said(answer: Answer) -> tuple[str, str]:
    return answer.word, answer.by or answer.state


def waits(nodes: Nodes) -> bool:
    return KEY in swept(nodes, "third").holds


def test_a_child_runs_once_more_after_its_parent_and_then_its_own_child(nodes: Nodes) -> None:
    ends(nodes, ROOT, "failure")
    ends(nodes, CHILD)
    ends(nodes, GRANDCHILD)
    again = replay(nodes, after(CHILD, ROOT), after(GRANDCHILD, CHILD, on="done"))
    assert (again.word, again.attempt) == ("ok", 1)
    assert said(ask(nodes)) == ("limited", f"{ROOT} has not ended")
    assert said(ask(nodes, GRANDCHILD)) == ("limited", f"{CHILD} has not ended")

    ends(nodes, ROOT, attempt=1)
    assert said(ask(nodes, GRANDCHILD)) == ("limited", f"{CHILD} has not ended")
    opened = ask(nodes)
    assert (opened.word, opened.state, opened.attempt) == ("ok", "retry", 1)
    assert said(ask(nodes)) == ("exists", "retry")
    row = nodes.ledger.run(CHILD)
    assert row is not None
    assert (parents_of(row.by), rerun_of(row.by)) == ((ROOT,), (f"{ROOT}/1", "ann"))
    assert waits(nodes)

    ends(nodes, CHILD, "failure", attempt=1)
    assert said(ask(nodes)) == ("exists", "failure")
    assert said(ask(nodes, GRANDCHILD)) == ("ok", "retry")
    assert not waits(nodes)
    assert ask(nodes).word == ask(nodes, GRANDCHILD).word == "finished"
    assert nodes.claim(of(nodes, GRANDCHILD), 1, nonce="g").word == "granted"


@pytest.mark.parametrize("state", ["failure", "lost"])
def test_a_child_that_runs_after_failures_runs_once_more_after_a_new_one(nodes: Nodes, state: str) -> None:
    ends(nodes, ROOT)
    assert replay(nodes, after(CHILD, ROOT, on="failure"), whole=True).word == "ok"
    grant = nodes.started(of(nodes, ROOT), 1, nonce="again")
    nodes.report(grant, state, 1 if state == "failure" else None, reason="gone")
    assert (nodes.state(ROOT), said(ask(nodes))) == (state, ("ok", "retry"))


@pytest.mark.parametrize("known", [True, False])
def test_where_the_clock_was_set_back_a_child_waits_for_its_fire_time(nodes: Nodes, known: bool) -> None:
    due = nodes.clock.wall + 10.0
    child = "third@2025-01-29T08:00:10Z"
    nodes.clock.step(30.0)
    ends(nodes, ROOT, "failure")
    if known:
        ends(nodes, child, fire_at=due, due=due)
    replay(nodes, after(child, ROOT))
    ends(nodes, ROOT, attempt=1)
    nodes.clock.wall = due - 6.0

    assert ask(nodes, child, fire_at=due, due=due).word == "ok"
    assert nodes.claim(of(nodes, child, fire_at=due, due=due), 1, nonce="early").word == "early"
    nodes.clock.step(3.0)
    grant = nodes.granted(of(nodes, child, fire_at=due, due=due), 1, nonce="again")
    assert nodes.gate(grant).word == "early"
    assert nodes.gate(grant).in_s == pytest.approx(3.0)
    nodes.clock.step(3.0)
    assert nodes.gate(grant).word == "ok"


def test_a_run_that_succeeded_is_run_once_more_and_its_child_after_it(nodes: Nodes) -> None:
    ends(nodes, ROOT)
    ends(nodes, CHILD)
    assert said(replay(nodes, after(CHILD, ROOT))) == ("finished", "success")  # it is not a dead letter
    again = replay(nodes, after(CHILD, ROOT), whole=True)
    assert (again.word, again.state, again.attempt) == ("ok", "retry", 1)
    twice = replay(nodes, whole=True)
    assert (twice.word, twice.by, twice.attempt) == ("exists", "replayed by ann (run rerun)", 1)
    assert said(replay(nodes, attempt=1, whole=True)) == ("finished", "retry")
    row = nodes.ledger.run(ROOT)
    assert row is not None
    assert (parents_of(row.by), rerun_of(row.by), is_backfill(row)) == ((), (f"{ROOT}/0", "ann"), True)

    ends(nodes, ROOT, attempt=1)
    assert said(ask(nodes)) == ("ok", "retry")
    row = nodes.ledger.run(CHILD)
    assert row is not None
    assert rerun_of(row.by) == (f"{ROOT}/1", "ann")
    assert not waits(nodes)


def test_a_run_that_is_run_once_more_has_all_its_tries_and_may_publish_again(nodes: Nodes) -> None:
    twice: dict[str, Any] = {"attempts": 2}
    grant = nodes.started(of(nodes, CHILD, by=f"after {ROOT}"), nonce="c")
    assert nodes.commit(grant).word == "ok"
    nodes.report(grant)
    assert replay(nodes, run=CHILD, whole=True, policy=Policy(**{**ONCE, **twice})).word == "ok"
    row = nodes.ledger.run(CHILD)
    assert row is not None
    assert (parents_of(row.by), rerun_of(row.by)) == ((ROOT,), (f"{CHILD}/0", "ann"))  # its parents stay named
    second = nodes.started(of(nodes, CHILD, **twice), 1, nonce="d")
    assert nodes.commit(second).word == "ok"
    nodes.report(second, "failure", 1)
    row = nodes.ledger.run(CHILD)
    assert row is not None
    assert (row.state, row.attempt) == ("retry", 2)
    ends(nodes, CHILD, "success", 2, **twice)
    replay(nodes, run=CHILD, attempt=2, whole=True, by="bob")
    row = nodes.ledger.run(CHILD)
    assert row is not None
    assert (parents_of(row.by), rerun_of(row.by)) == ((ROOT,), (f"{CHILD}/2", "bob"))


def test_what_was_missed_is_run_once_more_and_what_was_revoked_or_runs_is_not(nodes: Nodes) -> None:
    nodes.ask(Register(of=of(nodes, CHILD, by=f"{ABSENT}sales", start_within_s=0.0)))
    nodes.clock.step(1.0)
    nodes.ask(Settle(run=CHILD, attempt=AttemptNumber(0), watched=None))
    assert said(replay(nodes, run=CHILD, whole=True)) == ("ok", "retry")
    assert nodes.claim(of(nodes, CHILD), 1, nonce="c").word == "granted"
    assert said(replay(nodes, run=CHILD, attempt=1, whole=True)) == ("finished", "received")

    nodes.ask(Register(of=of(nodes, OTHER)))
    nodes.ask(Revoke(run=OTHER, by="ann"))
    assert said(replay(nodes, run=OTHER, whole=True)) == ("finished", "revoked")
    assert said(replay(nodes, run="sales#never", whole=True)) == ("finished", "")


def test_live_runs_go_before_one_that_is_run_once_more(nodes: Nodes) -> None:
    """No live run is rejected for it, and it waits for one that runs."""
    alone: dict[str, Any] = {"overlap": "forbid"}
    ends(nodes, ROOT, **alone)
    live = nodes.started(of(nodes, "sales#2", **alone), nonce="live")
    assert replay(nodes, whole=True, policy=Policy(**{**ONCE, **alone})).word == "ok"
    assert said(nodes.claim(of(nodes, ROOT, **alone), 1, nonce="r")) == ("limited", "overlap with sales#2")
    nodes.report(live)
    assert nodes.claim(of(nodes, "sales#3", **alone), nonce="next").word == "granted"


def test_a_run_that_its_parents_opened_in_the_usual_way_is_a_live_one(nodes: Nodes) -> None:
    nodes.started(of(nodes, CHILD, by=f"after {ROOT}", overlap="forbid"), nonce="live")
    assert nodes.claim(of(nodes, "third#2", overlap="forbid"), nonce="next").state == "rejected"


def test_without_children_nothing_follows_and_an_earlier_wish_is_gone(nodes: Nodes) -> None:
    ends(nodes, ROOT, "failure")
    replay(nodes, after(CHILD, ROOT))
    assert waits(nodes)
    ends(nodes, ROOT, "failure", attempt=1)
    replay(nodes, attempt=1)
    assert not waits(nodes)
    assert ask(nodes).word == "finished"


def test_a_parent_that_fails_again_leaves_its_children_as_they_were(nodes: Nodes) -> None:
    ends(nodes, ROOT, "failure")
    ends(nodes, CHILD)
    replay(nodes, after(CHILD, ROOT), after(GRANDCHILD, CHILD))
    ends(nodes, ROOT, "failure", attempt=1)
    assert said(ask(nodes)) == ("exists", "its parents have not ended as they should")
    assert not waits(nodes)


def test_a_child_that_still_runs_runs_once_more_after_its_end(nodes: Nodes) -> None:
    ends(nodes, ROOT, "failure")
    running = nodes.started(of(nodes, CHILD), 0, nonce="c")
    replay(nodes, after(CHILD, ROOT))
    ends(nodes, ROOT, attempt=1)
    first = ask(nodes)
    assert (said(first), first.in_s) == (("limited", f"{CHILD} has not ended"), LIMIT_RETRY_S)
    nodes.report(running)
    assert said(ask(nodes)) == ("ok", "retry")


@pytest.mark.parametrize("begun", [False, True])
def test_a_child_that_began_after_the_new_end_does_not_run_again(nodes: Nodes, begun: bool) -> None:
    """The end has opened it in the usual way: the node that saw it was faster."""
    ends(nodes, ROOT, "failure")
    replay(nodes, after(CHILD, ROOT))
    ends(nodes, ROOT, attempt=1)
    nodes.ask(Register(of=of(nodes, CHILD, by=f"after {ROOT}")))
    if begun:
        ends(nodes, CHILD)
    assert said(ask(nodes)) == ("exists", "success" if begun else "pending")
    assert not waits(nodes)
    assert ask(nodes).word == "finished"


def test_a_child_whose_row_says_that_its_parents_are_absent_has_not_begun(nodes: Nodes) -> None:
    """A node that does not know of the new end yet writes that row right after it."""
    ends(nodes, ROOT, "failure")
    replay(nodes, after(CHILD, ROOT))
    ends(nodes, ROOT, attempt=1)
    nodes.ask(Register(of=of(nodes, CHILD, by=f"{ABSENT}sales", start_within_s=0.0)))
    assert said(ask(nodes)) == ("limited", f"{CHILD} has not ended")
    assert waits(nodes)
    nodes.clock.step(1.0)
    nodes.ask(Settle(run=CHILD, attempt=AttemptNumber(0)))
    assert (nodes.state(CHILD), said(ask(nodes))) == ("missed", ("ok", "retry"))
    assert not waits(nodes)


def test_a_child_that_was_missed_and_one_without_a_row_run(nodes: Nodes) -> None:
    ends(nodes, ROOT, "failure")
    nodes.ask(Register(of=of(nodes, CHILD, by=f"{ABSENT}sales", start_within_s=0.0)))
    nodes.clock.step(1.0)
    nodes.ask(Settle(run=CHILD, attempt=AttemptNumber(0)))
    assert nodes.state(CHILD) == "missed"
    replay(nodes, after(CHILD, ROOT), after(GRANDCHILD, ROOT))
    ends(nodes, ROOT, attempt=1)
    assert said(ask(nodes)) == said(ask(nodes, GRANDCHILD)) == ("ok", "retry")
    assert nodes.claim(of(nodes, CHILD), 1, nonce="c").word == "granted"
    assert nodes.claim(of(nodes, GRANDCHILD), 1, nonce="g").word == "granted"


def diamond(nodes: Nodes) -> None:
    """The root has two children, and these a child of both. All have run, and the root has ended once more."""
    ends(nodes, ROOT, "failure")
    for run in (CHILD, OTHER, GRANDCHILD):
        ends(nodes, run)
    replay(nodes, after(CHILD, ROOT), after(OTHER, ROOT), after(GRANDCHILD, CHILD, OTHER))
    ends(nodes, ROOT, attempt=1)


def test_a_child_of_two_parents_waits_for_both(nodes: Nodes) -> None:
    """Their child runs once, after both."""
    diamond(nodes)
    assert said(ask(nodes)) == ("ok", "retry")
    ends(nodes, CHILD, attempt=1)
    assert said(ask(nodes, GRANDCHILD)) == ("limited", f"{OTHER} has not ended")
    assert said(ask(nodes, OTHER)) == ("ok", "retry")
    ends(nodes, OTHER, attempt=1)
    assert said(ask(nodes, GRANDCHILD)) == ("ok", "retry")
    row = nodes.ledger.run(GRANDCHILD)
    assert row is not None
    assert parents_of(row.by) == (CHILD, OTHER)
    ends(nodes, GRANDCHILD, attempt=1)
    assert ask(nodes, GRANDCHILD).word == "finished"


def test_a_row_names_as_many_of_its_parents_as_have_room(nodes: Nodes) -> None:
    parents = [f"other#{number}{'x' * 300}" for number in range(3)]
    ends(nodes, ROOT, "failure")
    replay(nodes, *(after(run, ROOT) for run in parents), after(GRANDCHILD, *parents))
    ends(nodes, ROOT, attempt=1)
    for run in parents:
        assert ask(nodes, run).word == "ok"
        ends(nodes, run, attempt=1)
    assert ask(nodes, GRANDCHILD).word == "ok"
    row = nodes.ledger.run(GRANDCHILD)
    assert row is not None
    assert (parents_of(row.by), rerun_of(row.by)) == (tuple(parents[:2]), (f"{ROOT}/1", "ann"))


def test_a_parent_that_fails_in_the_re_run_does_not_stand_as_it_was(nodes: Nodes) -> None:
    diamond(nodes)
    for run, state in ((CHILD, "success"), (OTHER, "failure")):
        ask(nodes, run)
        ends(nodes, run, state, attempt=1)
    assert said(ask(nodes, GRANDCHILD)) == ("exists", "not all of its parents have ended as they should")


def test_a_parent_that_is_not_run_again_stands_as_it_was(nodes: Nodes) -> None:
    """The child had run, so its other parent had come; a child that was missed for it does not run."""
    ends(nodes, ROOT, "failure")
    ends(nodes, CHILD)
    ends(nodes, OTHER, "failure")
    nodes.ask(Register(of=of(nodes, GRANDCHILD, by=f"{ABSENT}other", start_within_s=0.0)))
    nodes.clock.step(1.0)
    nodes.ask(Settle(run=GRANDCHILD, attempt=AttemptNumber(0)))
    replay(nodes, after(CHILD, ROOT, OTHER), after(GRANDCHILD, ROOT, OTHER))
    ends(nodes, ROOT, attempt=1)
    assert said(ask(nodes, GRANDCHILD)) == ("exists", "not all of its parents have ended as they should")
    assert said(ask(nodes)) == ("ok", "retry")


def test_a_parent_that_runs_is_waited_for_also_if_it_is_not_run_again(nodes: Nodes) -> None:
    ends(nodes, ROOT, "failure")
    other = nodes.started(of(nodes, OTHER), 0, nonce="o")
    replay(nodes, after(CHILD, ROOT, OTHER), after(GRANDCHILD, ROOT, OTHER, any=True))
    ends(nodes, ROOT, attempt=1)
    assert said(ask(nodes)) == said(ask(nodes, GRANDCHILD)) == ("limited", f"{OTHER} has not ended")
    nodes.report(other, "failure", 1)
    assert said(ask(nodes)) == ("exists", "not all of its parents have ended as they should")
    assert said(ask(nodes, GRANDCHILD)) == ("ok", "retry")


def test_what_a_person_has_revoked_stays(nodes: Nodes) -> None:
    ends(nodes, ROOT, "failure")
    nodes.ask(Revoke(run=CHILD, by="bob"))
    replay(nodes, after(CHILD, ROOT))
    ends(nodes, ROOT, attempt=1)
    assert said(ask(nodes)) == ("exists", "a person has revoked it")
    assert not waits(nodes)


def test_the_child_of_one_that_stays_stays_too(nodes: Nodes) -> None:
    ends(nodes, ROOT, "failure")
    nodes.ask(Revoke(run=CHILD, by="bob"))
    replay(nodes, after(CHILD, ROOT), after(GRANDCHILD, CHILD, on="done"))
    ends(nodes, ROOT, attempt=1)
    assert said(ask(nodes, GRANDCHILD)) == ("exists", "its parents have not ended as they should")


@pytest.mark.parametrize("end", ["missed", "revoked"])
def test_a_child_that_ended_before_it_began_is_not_opened_again(nodes: Nodes, end: str) -> None:
    ends(nodes, ROOT, "failure")
    ends(nodes, CHILD, by=f"after {ROOT}")
    replay(nodes, after(CHILD, ROOT), after(GRANDCHILD, ROOT))
    ends(nodes, ROOT, attempt=1)
    assert said(ask(nodes, start_within_s=0.0)) == ("ok", "retry")
    nodes.clock.step(1.0)
    if end == "revoked":
        nodes.ask(Revoke(run=CHILD, by="bob"))
    else:
        nodes.ask(Settle(run=CHILD, attempt=AttemptNumber(1)))
    assert said(ask(nodes)) == ("exists", end)
    assert said(ask(nodes, GRANDCHILD)) == ("ok", "retry")


def test_a_suspended_child_waits_and_one_that_is_over_is_not_opened_twice(nodes: Nodes) -> None:
    ends(nodes, ROOT, "failure")
    replay(nodes, after(CHILD, ROOT))
    ends(nodes, ROOT, attempt=1)
    nodes.ask(Suspend(job="third", suspended=True, by="bob"))
    first = ask(nodes)
    assert (said(first), first.in_s) == (("limited", "suspended"), UNSETTLED_RETRY_S)
    nodes.ask(Suspend(job="third", suspended=False, by="bob"))
    nodes.ask(Keep(key=ALL, held=True, by="bob"))
    assert said(ask(nodes)) == ("limited", "suspended")
    nodes.ask(Keep(key=ALL, held=False, by="bob"))
    assert said(ask(nodes)) == ("ok", "retry")


def test_another_run_of_the_child_goes_first_and_is_not_rejected(nodes: Nodes) -> None:
    ends(nodes, ROOT, "failure")
    replay(nodes, after(CHILD, ROOT))
    ends(nodes, ROOT, attempt=1)
    live = nodes.started(of(nodes, "third#9", overlap="forbid"), 0, nonce="l")
    assert said(ask(nodes, overlap="forbid")) == ("limited", "overlap with third#9")
    nodes.report(live)
    assert said(ask(nodes, overlap="forbid")) == ("ok", "retry")
    assert nodes.claim(of(nodes, "third#10", overlap="forbid"), nonce="m").word == "granted"
    assert said(nodes.claim(of(nodes, CHILD, overlap="forbid"), 1, nonce="n")) == ("limited", "overlap with third#10")


def test_the_members_of_a_group_run_each_once_and_are_waited_for(nodes: Nodes) -> None:
    """Also as a parent: one member is run once more."""
    members = [f"third#1~{number}" for number in range(2)]
    ends(nodes, ROOT, "failure")
    for run in members:
        ends(nodes, run, args=f'{{"part":"{run[-1]}"}}')
    replay(nodes, after("third#1", ROOT, count=2), Item(Runs(GRANDCHILD), "success", False, ((Runs("third#1", 2),),)))
    ends(nodes, ROOT, attempt=1)
    assert said(ask(nodes, "third#1~2")) == ("exists", "it is not in the plan")
    assert said(ask(nodes, members[1])) == ("ok", "retry")
    assert said(ask(nodes, members[1])) == ("exists", "retry")
    ends(nodes, members[1], attempt=1, args='{"part":"1"}')
    assert said(ask(nodes, GRANDCHILD)) == ("limited", "third#1 has not ended")
    assert said(ask(nodes, members[0])) == ("ok", "retry")
    ends(nodes, members[0], "failure", attempt=1, args='{"part":"0"}')
    assert said(ask(nodes, GRANDCHILD)) == ("finished", "") or not waits(nodes)

    items = [Item(Runs(GRANDCHILD), "success", False, ((Runs("third#1", 2),),))]
    replay(nodes, *items, attempt=1, run=members[0])
    ends(nodes, members[0], attempt=2, args='{"part":"0"}')
    assert said(ask(nodes, GRANDCHILD, root=members[0])) == ("ok", "retry")


@pytest.mark.parametrize(
    ("states", "on", "opens"),
    [
        (("success", ""), "success", False),
        (("success", ""), "done", False),
        (("success", "success"), "failure", False),
        (("success", "failure"), "failure", True),
        (("failure", "success"), "failure", True),
        (("success", "lost"), "failure", True),
        (("success", "revoked"), "failure", False),
        (("success", "revoked"), "success", False),
        (("revoked", "success"), "success", False),
        (("success", "revoked"), "done", True),
    ],
)
def test_a_group_has_ended_with_all_its_members(nodes: Nodes, states: tuple[str, str], on: str, opens: bool) -> None:
    """It succeeds with all of them, and fails with one. The first one is run once more; "": a member without a row."""
    first, second = "third#1~0", "third#1~1"
    if states[1]:
        ends(nodes, second, states[1])
    ends(nodes, first)
    item = Item(Runs(GRANDCHILD), on, False, ((Runs("third#1", 2),),))
    replay(nodes, item, run=first, whole=True)
    ends(nodes, first, states[0], attempt=1)
    assert (ask(nodes, GRANDCHILD, root=first).word == "ok") is opens


def test_another_definition_or_other_rules_open_nothing(nodes: Nodes) -> None:
    ends(nodes, ROOT, "failure")
    replay(nodes, after(CHILD, ROOT), after("third@1970-01-01T00:00:00Z", ROOT))
    ends(nodes, ROOT, attempt=1)
    assert ask(nodes, digest="d2").word == "differs"
    assert ask(nodes, "third@1970-01-01T00:00:00Z", fire_at=0.0, identity_from=5.0).word == "outdated"


def test_a_wish_is_forgotten_after_a_while(nodes: Nodes) -> None:
    ends(nodes, ROOT, "failure")
    replay(nodes, after(CHILD, ROOT))
    nodes.clock.step(CHILDREN_KEPT_S - 1.0)
    assert waits(nodes)
    nodes.clock.step(1.0)
    assert not waits(nodes)
    assert ask(nodes).word == "finished"


@pytest.mark.parametrize(
    "note",
    [
        "",
        "no list",
        "[1]",
        '[["third#1",0,"some day",0,[]]]',
        '[["third#1",0,"done",0,[3]]]',
        '[["third#1",0,"done",0,[],1]]',
        '[["third#1","x","done",0,[]]]',
        '[["third#1",0,"done",0,[[["sales#1","x"]]]]]',
    ],
)
def test_a_damaged_plan_opens_nothing(nodes: Nodes, both: Both, note: str) -> None:
    both.put_text("drains", KEY, f"1 0 {EPOCH} 0\nann\n{note}")
    assert said(ask(nodes)) == ("exists", "it is not in the plan")
    assert not waits(nodes)
    assert nodes.ledger.run(CHILD) is None


def test_a_ledger_that_forgot_the_opening_opens_it_again_under_a_number_of_its_own(nodes: Nodes, both: Both) -> None:
    """As after a replay: the forgotten attempt is ended like one that another holds."""
    ends(nodes, ROOT, "failure")
    ends(nodes, CHILD)
    replay(nodes, after(CHILD, ROOT))
    ends(nodes, ROOT, attempt=1)
    both.goes_back()
    assert ask(nodes).word == "recovering"
    assert restore(nodes, CHILD, 1, 2**50, **ONCE).word == "stale"
    nodes.clock.step(3600.0)
    if not hasattr(both.ledger, "key"):
        nodes.clock.recovering_s = 0.0
    opened = ask(nodes)
    assert (said(opened), opened.attempt) == (("ok", "retry"), 2)
