"""Elections between nodes: which node states its candidacy, how often, and when each node decides."""

from __future__ import annotations

from collections import Counter

import pytest
from support.small_cluster import SETTINGS, Cluster, Lone, asked_for, job

from coordd.core.context import Settings
from coordd.core.election import DECIDED_MAX, ELECTION_MEMBERS_MAX, rendezvous
from coordd.core.jobs.job import SparkSubmit
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Claim
from coordd.core.ledger.words import OK
from coordd.core.node import elections
from coordd.core.wire.events import (
    Action,
    Candidacy,
    WorkerElect,
    WorkerElectAck,
    WorkerHeartbeat,
    WorkerOffline,
    event_type,
)

TIMEOUT_S = SETTINGS.election_timeout_s


def elect(
    ident: str = "sales#1/0", sender: str = "b.1", view: tuple[str, ...] = ("a.1", "b.1"), **action: object
) -> WorkerElect:
    run, _, attempt = ident.partition("/")
    about = Action("sales", run, int(attempt or 0), **{"digest": "d1", **action})  # type: ignore[arg-type]  # typed where the keywords are made
    return WorkerElect(id=ident, topic="command", candidacy=Candidacy(0, 5, sender), view=view, action=about)


def acks(lone: Lone) -> list[WorkerElectAck]:
    return [event for event in lone.said if isinstance(event, WorkerElectAck)]


def succession(lone: Lone, ident: str = "sales#1/0") -> tuple[str, ...] | None:
    return lone.node.elections.by_id[ident].succession


# ---- the cost: one message per node and election


@pytest.mark.parametrize("names", ["a", "ab", "abc", "abcde"])
def test_each_node_says_one_thing_and_all_reach_the_same_succession(names: str) -> None:
    cluster = Cluster(*names, jobs=[job()])
    cluster.wait(3.0)
    cluster.said.clear()

    cluster.trigger("a", asked_for())

    said = Counter((name, event_type(event)) for name, event in cluster.said if hasattr(event, "candidacy"))
    assert said == {("a", "worker-elect"): 1} | {(name, "worker-elect-ack"): 1 for name in names[1:]}
    successions = {cluster[name].elections.by_id["sales#1/0"].succession for name in names}
    assert len(successions) == 1
    succession = successions.pop() or ()
    assert sorted(succession) == [f"{name}.1" for name in names]
    assert succession[0] == "a.1"  # the opener has the lowest clock


@pytest.mark.parametrize("names", ["ab", "abc", "abcde"])
def test_nodes_that_open_the_same_election_at_once_need_no_acks(names: str) -> None:
    cluster = Cluster(*names, jobs=[job(every_s=60.0)])
    cluster.wait(50.0)
    cluster.said.clear()

    cluster.wait(10.0)  # a second before the full minute each node opens it by itself

    said = Counter((name, event_type(event)) for name, event in cluster.said if hasattr(event, "candidacy"))
    assert said == {(name, "worker-elect"): 1 for name in names}
    assert cluster.launches("sales@2025-01-29T08:01:00Z") != []
    assert len(cluster.launches("sales@2025-01-29T08:01:00Z")) == 1


def test_no_election_waits_for_its_timeout_while_everybody_is_well() -> None:
    cluster = Cluster("a", "b", "c", jobs=[job()])

    cluster.trigger("a", asked_for())

    election = cluster["c"].elections.by_id["sales#1/0"]
    assert election.decided_at == election.opened_at


# ---- the same answer every time


def test_a_repeated_elect_gets_the_same_answer_once_per_repeat() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()

    for _ in range(3):
        lone.hear("b.1", elect())

    assert len(acks(lone)) == 3
    assert (
        len({ack.candidacy for ack in acks(lone)}) == 1
    )  # the stamp of the first statement: no node may improve its position


def test_the_opener_of_an_election_does_not_answer_the_other_opener() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.do(lone.node.open_election, "sales#1/0", "command", Action("sales", "sales#1", digest="d1"))

    lone.hear("b.1", elect())

    assert [event_type(event) for event in lone.said] == ["worker-elect"]
    assert succession(lone) is not None


def test_an_ack_may_overtake_its_elect() -> None:
    lone = Lone(job(), peers=("b.1", "c.1")).ready()

    lone.hear("c.1", WorkerElectAck(id="sales#1/0", candidacy=Candidacy(0, 3, "c.1"), acks="b.1"))
    lone.hear("b.1", elect(view=("a.1", "b.1", "c.1")))

    assert succession(lone) is not None
    assert succession(lone)[:2] == ("c.1", "b.1")  # type: ignore[index]  # None would fail here


def test_an_ack_that_is_older_than_an_election_may_last_answers_another_elect() -> None:
    lone = Lone(job(), peers=("b.1", "c.1")).ready()

    lone.hear("c.1", WorkerElectAck(id="sales#1/0", candidacy=Candidacy(0, 3, "c.1"), acks="b.1"))
    lone.wait(lone.node.settings.election_timeout_s + 0.5)
    lone.hear("b.1", elect(view=("a.1", "b.1", "c.1")))

    assert succession(lone) is None
    lone.hear("c.1", WorkerElectAck(id="sales#1/0", candidacy=Candidacy(1, 9, "c.1"), acks="b.1"))
    assert succession(lone) is not None
    assert lone.node.elections.by_id["sales#1/0"].statements["c.1"].load == 1


def test_only_so_many_acks_without_an_elect_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elections, "EARLY_MAX", 3)
    lone = Lone(job(), peers=("b.1",)).ready()

    for number in range(10):
        lone.hear("b.1", WorkerElectAck(id=f"sales#{number}/0", candidacy=Candidacy(0, 3, "b.1")))

    assert list(lone.node.elections._early) == ["sales#7/0", "sales#8/0", "sales#9/0"]


# ---- waiting for statements


def test_a_silent_member_is_waited_for_until_the_timeout() -> None:
    lone = Lone(job(), peers=("b.1", "c.1")).ready()
    lone.hear("b.1", elect(view=("a.1", "b.1", "c.1")))

    lone.wait(TIMEOUT_S - 0.01)
    assert succession(lone) is None
    lone.wait(0.02)

    assert succession(lone) is not None
    assert "c.1" not in succession(lone)  # type: ignore[operator]  # None would fail here


def test_each_of_many_elections_has_its_own_deadline() -> None:
    lone = Lone(job(), peers=("b.1", "c.1")).ready()
    for number in range(3):
        lone.hear("b.1", elect(f"sales#{number}/0", view=("a.1", "b.1", "c.1")))
        lone.wait(0.3)

    lone.wait(TIMEOUT_S - 0.75)
    decided = [succession(lone, f"sales#{number}/0") is not None for number in range(3)]

    assert decided == [True, False, False]
    lone.wait(0.6)
    assert lone.node.elections.open_ids == {}


@pytest.mark.parametrize("how", ["proof of death", "good-bye", "silence", "restart"])
def test_a_member_that_is_found_gone_is_not_waited_for(how: str) -> None:
    settings = Settings(election_timeout_s=100.0)
    lone = Lone(job(), peers=("b.1", "c.1"), settings=settings).ready()
    lone.wait(5.0)
    lone.hear("b.1", elect(view=("a.1", "b.1", "c.1")))
    assert succession(lone) is None

    if how == "proof of death":
        lone.do(lone.node.peer_dead, "c.1")
    elif how == "good-bye":
        lone.hear("c.1", WorkerOffline())
    elif how == "silence":
        lone.wait(1.1)  # six seconds in total
    else:
        lone.hear("c.2", WorkerHeartbeat(), incarnation="2-c")

    assert succession(lone) is not None


def test_of_the_openers_view_whom_we_know_to_be_dead_is_not_waited_for() -> None:
    lone = Lone(job(), peers=("b.1", "c.1")).ready()
    lone.do(lone.node.peer_dead, "c.1")

    lone.hear("b.1", elect(view=("a.1", "b.1", "c.1")))

    assert succession(lone) is not None


def test_who_is_not_in_the_view_may_stand_all_the_same() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()

    lone.hear("b.1", elect(view=("b.1", "x.1")))
    lone.hear("x.1", WorkerElectAck(id="sales#1/0", candidacy=Candidacy(0, 1, "x.1")))

    assert succession(lone) is not None
    assert set(succession(lone)) == {"a.1", "b.1", "x.1"}  # type: ignore[arg-type]  # None would fail here


def test_a_dead_member_delays_nobody_for_longer_than_it_takes_to_find_out() -> None:
    cluster = Cluster("a", "b", "c", jobs=[job()])
    cluster.kill("c")

    cluster.trigger("a", asked_for())
    assert cluster.launches("sales#1") == []  # c may be about to answer
    cluster.wait(TIMEOUT_S)

    assert cluster.launches("sales#1") == [("a", 0)]


# ---- abstentions


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("draining", "draining"),
        ("job unknown", "no such job"),
        ("job changed", "job differs"),
        ("tags", "tags do not match"),
        ("disk full", "the disk is full"),
        ("no java", "there is no java"),
        ("busy", "no budget"),
        ("topic", "unknown topic 'tea'"),
        ("no action", "no action"),
        ("well", ""),
    ],
)
def test_who_cannot_run_it_says_why(setting: str, says: str) -> None:
    lone = Lone(job(tags=("gpu",) if setting == "tags" else ()), peers=("b.1",)).ready()
    event = elect()
    ctx = lone.node.ctx
    if setting == "draining":
        lone.do(lone.node.drain, True)
    elif setting == "job unknown":
        lone.do(lone.node.set_jobs, {})
    elif setting == "job changed":
        event = elect(digest="d2")
    elif setting == "disk full":
        ctx.impaired = "the disk is full"
    elif setting == "no java":
        ctx.launch_problems = {"sales": "there is no java"}
    elif setting == "busy":
        for number in (7, 8):
            lone.node.runner_adopted(f"other#{number}", "other", 0, number, waits=False)
    elif setting == "topic":
        event.topic = "tea"
    elif setting == "no action":
        event.action = None

    lone.hear("b.1", event)

    (ack,) = acks(lone)
    assert ack.candidacy.abstains == says
    assert ("a.1" in succession(lone)) == (not says)  # type: ignore[operator]  # None would fail here


def test_drivers_that_wait_and_drivers_that_compute_have_budgets_of_their_own() -> None:
    waits = job("yarn", launch=SparkSubmit(application="/app.py", deploy_mode="cluster"))
    lone = Lone(job(), waits, peers=("b.1",)).ready()
    for number in (7, 8):
        lone.node.runner_adopted(f"other#{number}", "other", 0, number, waits=False)

    lone.hear("b.1", elect())
    event = elect("yarn#1/0")
    event.action = Action("yarn", "yarn#1", digest="d1")
    lone.hear("b.1", event)

    assert [ack.candidacy.abstains for ack in acks(lone)] == ["no budget", ""]


@pytest.mark.parametrize(("placement", "load"), [("first", 0), ("spread", 1)])
def test_a_job_that_is_to_be_spread_sorts_by_load(placement: str, load: int) -> None:
    lone = Lone(job(placement=placement), peers=("b.1",)).ready()
    lone.node.runner_adopted("other#1", "other", 0, 7, waits=False)

    lone.hear("b.1", elect())

    assert [ack.candidacy.load for ack in acks(lone)] == [load]


# ---- without messages


def many(count: int) -> Lone:
    """A node that knows ``count`` members, including itself."""
    return Lone(job(), peers=tuple(f"m{number:02}.1" for number in range(count - 1))).ready()


def test_up_to_sixteen_members_talk_and_more_only_compute() -> None:
    for count, words in ((ELECTION_MEMBERS_MAX, ["worker-elect"]), (ELECTION_MEMBERS_MAX + 1, [])):
        lone = many(count)
        lone.do(lone.node.open_election, "sales#1/0", "command", Action("sales", "sales#1", digest="d1"))
        assert [event_type(event) for event in lone.said] == words

    everybody = (*(f"m{number:02}.1" for number in range(ELECTION_MEMBERS_MAX)), "a.1")
    assert succession(lone) == rendezvous("sales#1/0", everybody)


def test_without_a_bus_the_ranks_are_computed_of_those_who_could_run_it() -> None:
    lone = Lone(job(tags=("gpu",)), settings=Settings(tags=("gpu",))).ready()
    digest = lone.node.ctx.jobs_digest
    lone.hear("b.1", WorkerHeartbeat(jobs_digest=digest, tags=("gpu", "big")))
    lone.hear("c.1", WorkerHeartbeat(jobs_digest=digest))
    lone.hear("d.1", WorkerHeartbeat(jobs_digest="other", tags=("gpu",)))
    lone.forget()
    lone.do(lone.node.bus_changed, False)

    lone.do(lone.node.open_election, "sales#1/0", "command", Action("sales", "sales#1", digest="d1"))

    assert lone.said == []
    assert set(succession(lone)) == {"a.1", "b.1"}  # type: ignore[arg-type]  # None would fail here


def test_a_large_cluster_launches_a_run_once_and_says_nothing_about_who() -> None:
    names = [f"n{number:02}" for number in range(ELECTION_MEMBERS_MAX + 1)]
    cluster = Cluster(*names, jobs=[job(every_s=60.0)])
    cluster.wait(30.0)
    cluster.said.clear()

    cluster.wait(40.0)

    assert len(cluster.launches("sales@2025-01-29T08:01:00Z")) == 1
    assert not [event for _, event in cluster.said if hasattr(event, "candidacy")]


# ---- a node that runs for months


def test_decided_elections_are_remembered_only_so_far() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()

    for number in range(DECIDED_MAX + 50):
        lone.hear("b.1", elect(f"sales#{number}/0"))

    assert len(lone.node.elections.by_id) == DECIDED_MAX
    assert lone.node.elections.open_ids == {}


def test_elections_beyond_the_bound_go_unanswered_and_their_runs_are_pursued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elections, "OPEN_MAX", 1)
    lone = Lone(job(), peers=("b.1", "c.1")).ready()
    view = ("a.1", "b.1", "c.1")

    lone.hear("b.1", elect("sales#1/0", view=view))
    lone.hear("b.1", elect("sales#2/0", view=view))
    assert len(acks(lone)) == 1
    lone.wait(3 * TIMEOUT_S)

    asked = {claim.of.run for claim in lone.requests(Claim)}
    assert asked == {"sales#1", "sales#2"}


@pytest.mark.parametrize("decided", [True, False])
@pytest.mark.parametrize("about", ["nothing", "another attempt"])
def test_an_id_that_a_peer_has_used_for_something_else_stops_no_run(about: str, decided: bool) -> None:
    lone = Lone(job(), peers=("b.1", "c.1")).ready()
    lie = elect("sales#1/0", view=("a.1", "b.1", "c.1"))
    lie.action = None if about == "nothing" else Action("sales", "sales#1", 7, digest="d1")
    lone.hear("b.1", lie)
    if decided:
        lone.wait(2 * TIMEOUT_S)
    lone.node.pursuits.pursuits.clear()  # a lie about another attempt began one
    lone.do(lone.node.trigger, asked_for(), 1)
    lone.answer("register", Answer(OK, state="pending"))
    lone.wait(10.0)

    assert [claim.of.run for claim in lone.requests(Claim)][:1] == ["sales#1"]


def test_a_second_action_under_the_same_id_is_pursued_too() -> None:
    lone = Lone(job(), peers=("b.1", "c.1")).ready()
    lone.hear("b.1", elect("sales#2/0", view=("a.1", "b.1", "c.1")))
    other = elect("sales#2/0", view=("a.1", "b.1", "c.1"))
    other.action = Action("sales", "sales#3", 0, digest="d1")
    lone.hear("c.1", other)
    lone.wait(10.0)

    assert {claim.of.run for claim in lone.requests(Claim)} == {"sales#2", "sales#3"}


def test_an_election_about_a_run_under_the_id_of_another_run_holds_neither_up() -> None:
    lone = Lone(job(), peers=("b.1", "c.1")).ready()
    lie = elect("sales#1/0", view=("a.1", "b.1", "c.1"))
    lie.action = Action("sales", "sales#2", 0, digest="d1")
    lone.hear("b.1", lie)
    lone.do(lone.node.trigger, asked_for(), 1)
    lone.answer("register", Answer(OK, state="pending"))
    lone.wait(10.0)

    assert {claim.of.run for claim in lone.requests(Claim)} == {"sales#1", "sales#2"}


def test_an_election_that_is_open_when_the_bus_is_lost_waits_for_nobody() -> None:
    lone = Lone(job(), peers=("b.1", "c.1", "d.1")).ready()
    lone.hear("b.1", elect(view=("a.1", "b.1", "c.1", "d.1")))
    lone.hear("c.1", WorkerElectAck(id="sales#1/0", candidacy=Candidacy(0, 6, "c.1", "no budget")))
    assert succession(lone) is None

    lone.do(lone.node.bus_changed, False)

    assert succession(lone) == rendezvous("sales#1/0", ("a.1", "b.1", "d.1"))  # c has said that it would not run it
    assert lone.node.elections.open_ids == {}
    assert lone.node.pursuits.pursuits["sales#1"].phase in ("due", "claiming")


def test_once_the_bus_is_back_statements_are_exchanged_again() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.do(lone.node.bus_changed, False)
    lone.do(lone.node.bus_changed, True)
    lone.hear("b.1", WorkerHeartbeat(state="ready", jobs_digest=lone.node.ctx.jobs_digest))

    lone.do(lone.node.trigger, asked_for(), 1)
    lone.answer("register", Answer(OK, state="pending"))

    assert [event.view for event in lone.said if isinstance(event, WorkerElect)] == [("a.1", "b.1")]


def test_whose_statement_is_lacking_is_asked_whether_it_is_there_once_a_second() -> None:
    """On a broker only this question shows, before the timeout, that the member is gone."""
    lone = Lone(job(), peers=("b.1", "c.1")).ready()
    for number in range(3):
        lone.do(lone.node.open_election, f"try-{number}", "drill", None)
    lone.hear("b.1", *[WorkerElectAck(id=f"try-{number}", candidacy=Candidacy(0, 9, "b.1")) for number in range(3)])
    lone.unicasts.clear()

    lone.wait(elections.LACKING_S + 0.001)
    assert [(name, event.ask) for name, event in lone.unicasts] == [("c.1", True)]  # type: ignore[attr-defined]  # what this test makes is of one kind
    lone.do(lone.node.open_election, "try-3", "drill", None)
    lone.wait(0.5)
    assert [name for name, _ in lone.unicasts].count("c.1") == 1

    lone.do(lone.node.peer_dead, "c.1")
    assert all(lone.node.elections.by_id[f"try-{number}"].succession is not None for number in range(3))
