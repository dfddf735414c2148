"""What hooks are told of nodes: each coming, going and drain once, under one key on all nodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from support.small_cluster import EPOCH

from coordd.config.hooks.events import ALL_OF
from coordd.config.hooks.hook import Hook
from coordd.core.ledger.rows import ALL, OF_JOB, OF_NODE, Hold
from coordd.core.ledger.words import NEVER
from coordd.core.ready import Notice
from coordd.services.hooks.happenings import APART_S, Happening
from coordd.services.hooks.nodes import LOST_MAX, Nodes
from services.hooks.test_service import Machine

ABOUT_NODES = Hook(on=ALL_OF["node.*"], name="page")


def noticed(
    nodes: Nodes, what: str, peer: str = "b.2", incarnation: str = "1-x", at: float = EPOCH, *, ready: bool = True
) -> Happening | None:
    return nodes.noticed(Notice(f"node.{what}", {"peer": peer}), incarnation, at, ready=ready)


def test_all_nodes_know_a_start_by_one_id_whenever_they_notice_it() -> None:
    first, much_later = noticed(Nodes(), "joined"), noticed(Nodes(), "joined", at=EPOCH + 10 * APART_S)
    another = noticed(Nodes(), "joined", incarnation="2-y")

    assert first is not None
    assert much_later is not None
    assert another is not None
    assert first.ident() == much_later.ident() != another.ident()
    assert (first.event, first.fields["sentence"]) == ("node.joined", "b has joined")


def test_the_peers_that_a_starting_node_meets_are_no_news() -> None:
    assert noticed(Nodes(), "joined", ready=False) is None


def test_a_node_that_was_lost_is_back_also_for_one_that_is_not_ready() -> None:
    nodes = Nodes()
    noticed(nodes, "lost")

    back = noticed(nodes, "joined", ready=False)

    assert back is not None
    assert back.fields["sentence"] == "b is back"
    again = noticed(nodes, "joined")
    assert again is not None
    assert again.ident() != back.ident()
    assert again.fields["sentence"] == "b has joined"


def test_a_node_that_left_is_not_back_when_it_joins() -> None:
    nodes = Nodes()
    noticed(nodes, "lost")
    left = noticed(nodes, "left")

    assert left is not None
    assert (left.event, left.fields["state"], left.fields["sentence"]) == ("node.left", "left", "b was stopped")
    joined = noticed(nodes, "joined")
    assert joined is not None
    assert joined.fields["sentence"] == "b has joined"


def test_few_lost_nodes_are_remembered() -> None:
    nodes = Nodes()
    for number in range(LOST_MAX + 1):
        noticed(nodes, "lost", f"b.{number}")

    assert noticed(nodes, "joined", "b.0", ready=False) is None
    assert noticed(nodes, "joined", "b.1", ready=False) is not None


def test_a_drain_and_its_end_are_told_once_each() -> None:
    nodes = Nodes()
    old, new = Hold(by="ann", uid=1, at=EPOCH, note="disk"), Hold(by="bob", uid=2, at=EPOCH + 60.0)
    others = {OF_JOB + "sales": old, ALL: old}
    assert list(nodes.looked({OF_NODE + "a": old, **others})) == []

    (drained,) = nodes.looked({OF_NODE + "a": old, OF_NODE + "b": old, **others})
    assert (drained.event, drained.fields["node"], drained.fields["reason"]) == ("node.drained", "b", "disk")
    assert drained.fields["sentence"] == "b was drained by ann: disk"
    assert list(nodes.looked({OF_NODE + "a": old, OF_NODE + "b": old})) == []
    (again,) = nodes.looked({OF_NODE + "a": old, OF_NODE + "b": new})
    assert (again.event, again.fields["sentence"]) == ("node.drained", "b was drained by bob")
    assert again.ident() != drained.ident()

    resumed = list(nodes.looked({}))
    assert [(one.event, one.fields["node"]) for one in resumed] == [("node.resumed", "a"), ("node.resumed", "b")]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch, ABOUT_NODES)


def test_hooks_are_told(machine: Machine) -> None:
    machine.node.members["b"] = SimpleNamespace(name="b.2", incarnation="1-x")
    machine.look()
    machine.journals(notices=(Notice("node.joined", {"peer": "b.2"}),))
    machine.node.drains.holds = {OF_NODE + "b": Hold(by="ann", at=EPOCH)}
    machine.look(1.0)

    assert [told["event"] for told in machine.look(4.0)] == ["node.joined", "node.drained"]
    machine.journals(notices=(Notice("node.joined", {"peer": "b.2"}),))
    assert machine.look(5.0) == []


def test_holds_that_no_sweep_has_shown_are_not_compared(machine: Machine) -> None:
    machine.node.identity_from = NEVER
    machine.look()
    machine.node.identity_from = EPOCH
    machine.node.drains.holds = {OF_NODE + "b": Hold(by="ann", at=EPOCH)}
    machine.look(1.0)

    assert machine.look(5.0) == []
