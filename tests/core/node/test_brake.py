"""The brake: which nodes may launch while others use another ledger, or do not name theirs."""

from __future__ import annotations

import random

import pytest
from support.small_cluster import EPOCH, MONO, SETTINGS, Lone, job, open_answer

from coordd.core.jobs.job import scheduled_run
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import Claim, Register
from coordd.core.ledger.runner_requests import Registration, Report
from coordd.core.ledger.words import GRANTED, Policy
from coordd.core.node import brake as module
from coordd.core.node.node import Node
from coordd.core.ready import Now, Ready
from coordd.core.wire.events import Action, Candidacy, WorkerElect, WorkerElectAck, WorkerHeartbeat, WorkerHello

OURS, OTHER, BEFORE = "1" * 16, "2" * 16, "3" * 16
SALES = job("sales")


class One(Lone):
    """One node of a cluster, with a pin or at its first start."""

    def __init__(self, pin: str = "", acquainted: str = "") -> None:
        super().__init__(SALES)
        self.node = Node(
            hostname="a",
            pid=1,
            incarnation="1-a",
            settings=SETTINGS,
            clock_mark=0,
            rng=random.Random(1),
            pin=pin,
            acquainted=acquainted,
        )
        self.node.set_jobs({"sales": SALES}, Now(MONO, EPOCH))
        self.pins: list[str] = []
        self.take()
        self.node.start((), self.now)
        self.take()

    def take(self) -> Ready:
        pin = self.node.ctx.out.pin
        ready = super().take()
        if pin and hasattr(self, "pins"):
            self.pins.append(pin)
        return ready

    def sees(self, identity: str, predecessor: str = "", recovering_s: float = 0.0, mark: str = "7") -> One:
        """The ledger answers a sweep."""
        answer = open_answer(jobs=("sales",))
        self.node.look_again(self.now)
        self.take()
        said = OpenAnswer([], answer.jobs, EPOCH, recovering_s, mark, identity, predecessor)
        self.answer("open", said)
        return self

    def member(self, name: str, identity: str, *, pinned: bool) -> One:
        self.hear(f"{name}.1", WorkerHeartbeat(state="ready", ledger=identity, pinned=pinned, clock=1))
        return self

    @property
    def launches_nothing(self) -> bool:
        """The node abstains, and does not even claim runs that are long overdue."""
        ctx = self.node.ctx
        action = Action("sales", "sales#1", fire_at=self.now.wall)
        assert bool(ctx.braked) == bool(self.node.pursuits.abstains(SALES, action))
        return bool(ctx.braked)


def test_a_node_that_has_not_seen_its_ledger_launches_nothing() -> None:
    one = One()
    assert one.launches_nothing
    assert one.node.ctx.braked == module.NOT_SEEN
    assert not One(pin=OURS).launches_nothing, "a pin is compared by the ledger itself"


def test_a_lone_node_is_a_majority_of_one_and_pins() -> None:
    one = One().sees(OURS)
    assert not one.launches_nothing
    assert (one.pins, one.node.ctx.ledger, one.node.ctx.pinned) == ([OURS], OURS, True)
    assert [n.event for n in one.notices if n.event.startswith("ledger.")] == ["ledger.pinned", "ledger.used"]


def test_a_ledger_without_identities_is_compared_with_nothing() -> None:
    assert not One().member("b", OTHER, pinned=True).sees("").launches_nothing


@pytest.mark.parametrize(
    ("others", "brakes"),
    [
        ([OURS], False),
        ([""], True),  # its ledger is unknown: it is starting, or has an older version
        ([OTHER], True),  # with a tie no node launches
        ([OURS, OTHER], False),
        ([OURS, ""], False),
        ([OTHER, OTHER], True),
        ([OTHER, ""], True),
        ([OURS, OTHER, OTHER], True),
        ([OURS, OURS, OTHER], False),
        ([OURS, "", OTHER], True),
    ],
)
def test_a_first_start_takes_a_strict_majority_of_all_members(others: list[str], brakes: bool) -> None:
    one = One()
    for number, identity in enumerate(others):
        one.member(f"n{number}", identity, pinned=False)
    one.sees(OURS)
    assert one.launches_nothing == brakes
    assert one.pins == ([] if brakes else [OURS])
    assert one.node.ctx.split == (brakes and OTHER in others)


def test_lost_members_count_and_those_that_left_do_not() -> None:
    one = One().member("b", "", pinned=False)
    one.sees(OURS)
    assert one.launches_nothing
    one.wait(30.0)
    assert one.node.ctx.membership.members["b"].state == "lost"
    assert one.sees(OURS).launches_nothing, "it may be launching all the same"
    member = one.node.ctx.membership.members["b"]
    one.node.ctx.membership.offline(member, 99)
    one.do(one.node._members_changed)
    assert not one.launches_nothing


def test_a_first_start_never_outvotes_who_has_used_another_one() -> None:
    """Two of three nodes agree, and still wait, because the third one may be launching at this moment."""
    one = One().member("b", OURS, pinned=False).member("c", OTHER, pinned=True).sees(OURS)
    assert one.launches_nothing
    assert "c.1 uses" in one.node.ctx.braked
    one.member("c", OURS, pinned=True)
    assert not one.launches_nothing


def test_a_first_start_without_a_bus_waits_for_it_but_not_for_ever() -> None:
    one = One()
    one.do(one.node.bus_changed, False)
    one.sees(OURS)
    assert one.launches_nothing
    assert "bus" in one.node.ctx.braked
    one.do(one.node.bus_changed, True)
    assert not one.launches_nothing
    alone = One()
    alone.do(alone.node.bus_changed, False)
    alone.sees(OURS)
    alone.wait(module.BUS_PATIENCE_S - 0.5)
    assert alone.sees(OURS).launches_nothing
    alone.wait(0.6)
    assert alone.questions("open")
    assert not alone.sees(OURS).launches_nothing, "jobs run without a broker, also where nothing ran before"
    used = One(pin=OURS)
    used.do(used.node.bus_changed, False)
    assert not used.sees(OURS).launches_nothing, "who has used it goes on without a bus"


def test_an_identity_that_is_given_in_a_quarantine_is_not_pinned_yet() -> None:
    one = One().sees(OTHER, recovering_s=12.0)
    assert one.launches_nothing
    assert one.pins == []
    one.sees(OURS)
    assert one.pins == [OURS]
    waits = One().sees(OURS, recovering_s=3.0)
    assert not waits.questions("open")
    waits.wait(3.1)
    assert waits.questions("open"), "it is looked at again when the quarantine is over"


@pytest.mark.parametrize(
    ("others", "brakes"),
    [
        ([(OTHER, False)], False),  # a new node never stops a node that has already used its ledger
        ([(OTHER, False), (OTHER, False), ("", False)], False),
        ([(OTHER, True)], True),
        ([(OTHER, True), (OURS, True)], False),
        ([(OTHER, True), (OURS, False)], True),
        ([(OTHER, True), (OTHER, True)], True),
        ([(OTHER, True), (OURS, True), (OTHER, True)], True),
        ([(OTHER, True), (OURS, True), (OURS, True), (BEFORE, True)], False),
        ([(OTHER, True), (OURS, True), (BEFORE, True)], True),
    ],
)
def test_among_those_that_have_used_different_ones_the_strict_majority_goes_on(
    others: list[tuple[str, bool]], brakes: bool
) -> None:
    one = One(pin=OURS).sees(OURS)
    for number, (identity, pinned) in enumerate(others):
        one.member(f"n{number}", identity, pinned=pinned)
    assert one.launches_nothing == brakes
    assert one.node.ctx.split == brakes
    differing = {fields["theirs"] for event, fields in one.notices if event == "ledger.differs"}
    assert differing == {identity for identity, _ in others} - {OURS, ""}, "it is told in any case"


def test_who_still_uses_the_closed_ledger_before_ours_is_no_opponent() -> None:
    one = One(pin=BEFORE).member("b", BEFORE, pinned=True).member("c", BEFORE, pinned=True)
    one.sees(OURS, predecessor=BEFORE)
    assert not one.launches_nothing
    assert one.pins == [OURS]


def test_a_person_moves_the_pin() -> None:
    one = One(pin=BEFORE)
    one.do(one.node.accept_ledger, OURS)
    assert (one.pins, one.node.ctx.ledger) == ([OURS], OURS)


def test_an_upgraded_node_that_meets_the_ledger_it_knows_needs_no_majority() -> None:
    """Older members do not name their ledger. The ledger's epoch shows that it is the same one."""
    one = One(acquainted="7").member("b", "", pinned=False).sees(OURS, mark="7")
    assert not one.launches_nothing
    other = One(acquainted="6").member("b", "", pinned=False).sees(OURS, mark="7")
    assert other.launches_nothing


def test_the_others_are_told_at_once() -> None:
    one = One()
    one.member("b", OURS, pinned=False)
    one.forget()
    one.sees(OURS)
    said = [(e.ledger, e.pinned) for e in one.said if isinstance(e, WorkerHeartbeat)]
    assert said[-1] == (OURS, True)
    assert said[0][0] == OURS


def test_a_hello_says_which_ledger_was_used_before_any_answer() -> None:
    one = One(pin=OURS)
    assert [(e.ledger, e.pinned) for e in one.said if isinstance(e, WorkerHello)] == [(OURS, True)]


# ---- the actions that a braked node leaves out


def due(one: One) -> str:
    """A run that is due now, known from a peer's election."""
    fire_at = one.now.wall
    run = scheduled_run("sales", fire_at)
    action = Action("sales", run, 0, fire_at, True, SALES.digest)
    one.hear(
        "b.1",
        WorkerElect(
            id=f"{run}/0",
            topic="command",
            candidacy=Candidacy(0, 9, "b.1"),
            view=("a.1", "b.1"),
            action=action,
            clock=9,
        ),
    )
    return run


def test_it_abstains_and_claims_nothing_however_late_it_is() -> None:
    one = One().member("b", OTHER, pinned=True).sees(OURS)
    run = due(one)
    [ack] = [e for e in one.said if isinstance(e, WorkerElectAck)]
    assert ack.candidacy.abstains == one.node.ctx.braked
    assert ack.candidacy.ledger == OURS
    for _ in range(80):
        one.wait(60.0)
        one.member("b", OTHER, pinned=True)
        one.sees(OURS)
    assert run in one.node.pursuits.pursuits
    assert not one.requests(Claim)


def test_a_grant_that_comes_after_the_brake_is_given_back() -> None:
    one = One(pin=OURS).sees(OURS)
    due(one)
    one.wait(2.0)
    [claim] = one.waiting(Claim)
    one.member("b", OTHER, pinned=True)
    assert one.launches_nothing
    one.answer("claim", Answer(GRANTED, token=5, left_s=60.0), sent_at=one.now.mono)
    assert one.launches == []
    [report] = one.requests(Report)
    assert (report.grant.token, report.state) == (5, "retry")
    assert claim.of.run == report.grant.run


def test_a_statement_under_another_ledger_counts_for_no_place() -> None:
    one = One(pin=OURS).sees(OURS)
    one.member("b", OURS, pinned=True)
    run = scheduled_run("sales", one.now.wall)
    action = Action("sales", run, 0, one.now.wall, True, SALES.digest)
    candidacy = Candidacy(0, 1, "b.1", "", OTHER)
    one.hear(
        "b.1",
        WorkerElect(id=f"{run}/0", topic="command", candidacy=candidacy, view=("a.1", "b.1"), action=action, clock=9),
    )
    election = one.node.elections.by_id[f"{run}/0"]
    assert election.succession == ("a.1",)
    assert election.statements["b.1"].abstains == "it uses another ledger"


def test_a_trigger_is_refused_where_its_run_would_never_start() -> None:
    one = One().member("b", OTHER, pinned=True).sees(OURS)
    of = Registration("sales#1", "sales", SALES.digest, Policy(), one.now.wall, scheduled=False)
    one.do(one.node.trigger, of, 1)
    assert [(reply.kind, OTHER in reply.message) for reply in one.replies] == [("other_ledger", True)]


def test_a_trigger_waits_on_this_node_until_its_ledger_is_known_to_be_the_right_one() -> None:
    """The request would be lost in the wrong ledger."""
    one = One().member("b", "", pinned=False).sees(OURS)
    of = Registration("sales#1", "sales", SALES.digest, Policy(), one.now.wall, scheduled=False)
    one.do(one.node.trigger, of, 1)
    assert [reply.result["durable"] for reply in one.replies] == ["node"]
    assert [kept.run for kept in one.kept] == ["sales#1"]
    one.wait(3.0)
    assert not one.questions("register")
    one.member("b", OURS, pinned=False)
    one.wait(1.1)
    assert [register.of.run for register in one.waiting(Register)] == ["sales#1"]
