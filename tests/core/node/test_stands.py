"""Elections about a subject: who has it stands, with its load, and the others abstain."""

from __future__ import annotations

from support.small_cluster import Lone

from coordd.core.wire.events import WorkerElect


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
