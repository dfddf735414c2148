"""Elections about a subject: who has it stands, with its load, and the others abstain."""

from __future__ import annotations

import pytest
from support.small_cluster import Lone

from coordd.core.node import elections
from coordd.core.triggers import polling
from coordd.core.wire.events import Candidacy, WorkerElect, WorkerElectAck


def stated(lone: Lone, ident: str) -> tuple[int, str]:
    lone.node.open_election(ident, "trigger", None, lone.now)
    lone.take()
    (said,) = [event for event in lone.said if isinstance(event, WorkerElect) and event.id == ident]
    return said.candidacy.load, said.candidacy.abstains


def test_a_node_stands_for_the_subjects_that_it_has() -> None:
    lone = Lone(peers=("b.2",)).ready()
    lone.node.topics.add("trigger")
    lone.node.elections.stands["trigger"] = {"trigger/j/mine": (1, ""), "trigger/j/broken": (0, "its last look failed")}

    assert stated(lone, "trigger/j/mine/7") == (1, "")
    assert stated(lone, "trigger/j/broken/7") == (0, "its last look failed")
    assert stated(lone, "trigger/j/other/7") == (0, "it has no such subject")


def test_nodes_that_do_not_hear_each_other_never_leave_a_subject_to_each_other() -> None:
    """The other one does not know that the look of this node has failed, and may leave it to this node."""
    a, b = Lone(name="a", peers=("b.1",)).ready(), Lone(name="b", peers=("a.1",)).ready()
    for lone, why in ((a, "its last look failed"), (b, "")):
        lone.node.topics.add("trigger")
        lone.node.elections.stands["trigger"] = {"trigger/j/mine": (1, why)}
        lone.do(lone.node.bus_changed, False)
    firsts = set()
    for term in range(20):
        successions = [
            lone.node.open_election(f"trigger/j/mine/{term}", "trigger", None, lone.now).succession for lone in (a, b)
        ]
        assert successions[0] == successions[1]
        firsts.add((successions[0] or ("",))[0])
    assert firsts == {"a.1", "b.1"}
    without = b.node.open_election("trigger/j/other/1", "trigger", None, b.now)
    assert without.succession == ("a.1",), "it does not have that one"


def test_the_latest_election_about_a_subject_outlives_a_burst_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a node that looks for it a moment later holds it once more, and may come to another succession."""
    monkeypatch.setattr(elections, "DECIDED_MAX", 3)
    lone = Lone().ready()
    lone.node.topics.add("trigger")
    about = lone.node.elections
    about.stands["trigger"] = {"trigger/j/mine": (1, "")}
    mine = lone.node.open_election("trigger/j/mine/7", "trigger", None, lone.now)
    for number in range(9):
        lone.node.open_election(f"trigger/j/other/{number}", "trigger", None, lone.now)

    assert "trigger/j/mine/7" not in about.by_id
    assert about.known("trigger/j/mine/7", "trigger", lone.now) is mine
    assert about.known("trigger/j/mine/8", "trigger", lone.now) is None
    about.forget("trigger/j/mine")
    assert about.known("trigger/j/mine/7", "trigger", lone.now) is None


def test_an_election_of_a_time_when_clocks_were_ahead_is_held_once_more() -> None:
    """Nodes that it did not reach have no result of it, or another one."""
    lone = Lone().ready()
    lone.node.topics.add("trigger")
    about = lone.node.elections
    about.stands["trigger"] = {"trigger/j/mine": (1, "")}
    begins = polling.term("trigger/j/mine", lone.now.wall) + 5
    ident = polling.election_of("trigger/j/mine", begins)
    early = lone.node.open_election(ident, "trigger", None, lone.now)
    lone.wait(2 * polling.TERM_S)
    assert about.known(ident, "trigger", lone.now) is early, "its term does not begin yet"

    while polling.term("trigger/j/mine", lone.now.wall) < begins:
        lone.wait(1.0)
    assert about.known(ident, "trigger", lone.now) is None
    again = lone.node.open_election(ident, "trigger", None, lone.now)
    assert again is not early
    lone.wait(polling.TERM_S / 2)
    assert about.known(ident, "trigger", lone.now) is again


@pytest.mark.parametrize("decided", [True, False])
def test_a_node_that_holds_an_election_once_more_states_again_and_its_newest_statement_counts(decided: bool) -> None:
    """Both have polled in a term before this one; one of them stated so when its clock was ahead."""
    peers = ("b.2",) if decided else ("b.2", "c.3")
    lone = Lone(peers=peers).ready()
    lone.node.topics.add("trigger")
    lone.node.elections.stands["trigger"] = {"trigger/j/mine": (0, "")}
    election = lone.node.open_election("trigger/j/mine/7", "trigger", None, lone.now)
    mine = election.statements["a.1"].clock
    early, again = (Candidacy(0, clock, "b.2") for clock in (mine - 1, mine + 1))
    lone.hear("b.2", WorkerElectAck(id=election.id, candidacy=early, acks="a.1"))
    assert election.succession == (("b.2", "a.1") if decided else None)
    for candidacy in (again, early):  # the last is late
        lone.hear("b.2", WorkerElectAck(id=election.id, candidacy=candidacy, acks="a.1"))
    lone.wait(2.0)

    assert election.succession == ("a.1", "b.2")


def test_in_an_election_about_a_run_the_first_statement_counts() -> None:
    lone = Lone(peers=("b.2",)).ready()
    lone.node.topics.add("drill")
    election = lone.node.open_election("7", "drill", None, lone.now)
    clock = election.statements["a.1"].clock
    for of in (clock - 1, clock + 1):
        lone.hear("b.2", WorkerElectAck(id=election.id, candidacy=Candidacy(0, of, "b.2"), acks="a.1"))

    assert election.succession == ("b.2", "a.1")
