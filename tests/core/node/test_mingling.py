"""How a node joins: it mingles, says hello again when the bus is back, and gives way to another node with its name."""

from __future__ import annotations

import pytest
from support.small_cluster import SETTINGS, Lone, job

from coordd.core.context import Settings
from coordd.core.members import heartbeat
from coordd.core.runs import sweep
from coordd.core.wire import codec
from coordd.core.wire.events import (
    MESSAGE_BYTES_MAX,
    PROTOCOL_MAJOR,
    Packet,
    WorkerHeartbeat,
    WorkerHello,
    WorkerHelloReply,
    WorkerOffline,
    event_type,
)
from core.node.says import types

# ---- mingle


def test_a_node_that_is_alone_is_ready_at_once() -> None:
    lone = Lone(job())

    lone.do(lone.node.start, ())

    assert lone.node.ctx.state == "ready"
    assert types(lone.said) == ["worker-hello", "worker-online"]
    assert [one.request.op for one in lone.asked] == ["open"]  # the first sweep


def test_it_mingles_until_everybody_that_the_transport_knows_has_answered() -> None:
    lone = Lone(job())
    lone.do(lone.node.start, ("b.1", "c.1"))
    lone.hear("b.1", WorkerHelloReply(to="a.1", state="ready"))
    assert lone.node.ctx.state == "mingling"

    lone.hear("c.1", WorkerHelloReply(to="a.1", state="ready"))

    assert lone.node.ctx.state == "ready"


def test_who_dies_while_we_mingle_is_not_waited_for() -> None:
    lone = Lone(job())
    lone.do(lone.node.start, ("b.1",))

    lone.do(lone.node.peer_dead, "b.1")

    assert lone.node.ctx.state == "ready"


@pytest.mark.parametrize("peers", [("b.1",), None], ids=["a silent peer", "a transport that cannot tell"])
def test_mingling_ends_with_its_timeout(peers: tuple[str, ...] | None) -> None:
    lone = Lone(job())
    lone.do(lone.node.start, peers)

    lone.wait(SETTINGS.mingle_timeout_s - 0.01)
    assert lone.node.ctx.state == "mingling"
    lone.wait(0.02)

    assert lone.node.ctx.state == "ready"


def test_without_mingling_it_is_ready_at_once() -> None:
    lone = Lone(job(), settings=Settings(mingle=False))

    lone.do(lone.node.start, ("b.1",))

    assert types(lone.said) == ["worker-online"]


def test_a_hello_reply_brings_the_clock_and_the_tokens() -> None:
    lone = Lone(job())
    lone.do(lone.node.start, ("b.1",))

    lone.hear("b.1", WorkerHelloReply(to="a.1", state="ready", tokens={"sales": 41}), clock=900)

    assert lone.node.ctx.clock.value > 900
    assert lone.node.ctx.tokens == {"sales": 41}


def test_a_hello_is_answered_in_as_many_letters_as_the_tokens_take() -> None:
    lone = Lone(job()).ready()
    names = [
        f"{'job' * 20}-{number:04}" for number in range(2 * heartbeat.REPLY_TOKENS_MAX + 1)
    ]  # the longest valid text
    for name in names:
        lone.node.ctx.saw_token(name, 2**52)

    lone.hear("b.1", WorkerHello())

    replies = [event for to, event in lone.unicasts if to == "b.1" and isinstance(event, WorkerHelloReply)]
    assert [len(reply.tokens) for reply in replies] == [heartbeat.REPLY_TOKENS_MAX, heartbeat.REPLY_TOKENS_MAX, 1]
    assert sorted(name for reply in replies for name in reply.tokens) == sorted(names)
    for reply in replies:
        packet = Packet(PROTOCOL_MAJOR, "default", "a", 1, "1-a", 0, 0, [reply])
        assert len(codec.encode(packet)) < MESSAGE_BYTES_MAX


def test_an_old_hello_is_answered_and_is_no_sign_of_life() -> None:
    lone = Lone(job()).ready()
    old = Packet(PROTOCOL_MAJOR, "default", "b", 1, "1-b", 0, 0, [WorkerHello(clock=3)])

    lone.do(lone.node.receive_late, old)

    assert [to for to, event in lone.unicasts if isinstance(event, WorkerHelloReply)] == ["b.1"]
    assert lone.node.ctx.membership.members == {}


def test_when_the_bus_is_back_the_node_says_hello_again() -> None:
    lone = Lone(job()).ready()

    lone.do(lone.node.bus_changed, False)
    assert lone.said == []
    lone.do(lone.node.bus_changed, True)

    assert types(lone.said) == ["worker-hello"]


def test_when_the_bus_is_back_what_nobody_could_tell_is_looked_up_in_the_ledger() -> None:
    lone = Lone(job()).ready()
    lone.do(lone.node.bus_changed, False)

    lone.do(lone.node.bus_changed, True)
    lone.wait(sweep.SWEEP_APART_S + 0.01)

    assert len(lone.questions("open")) == 1


def test_a_bus_that_says_twice_that_it_is_there_is_greeted_once() -> None:
    lone = Lone(job()).ready()
    lone.do(lone.node.bus_changed, False)
    lone.do(lone.node.bus_changed, False)

    lone.do(lone.node.bus_changed, True)
    lone.do(lone.node.bus_changed, True)

    assert types(lone.said) == ["worker-hello"]
    assert [notice.event for notice in lone.notices if notice.event.startswith("bus.")] == ["bus.lost", "bus.connected"]


def test_a_node_greets_when_the_bus_comes_and_mingles_from_then_on() -> None:
    lone = Lone(job())
    lone.do(lone.node.bus_changed, False)
    lone.do(lone.node.start, None)
    assert lone.said == []

    lone.wait(SETTINGS.mingle_timeout_s / 2)
    lone.do(lone.node.bus_changed, True)
    lone.wait(SETTINGS.mingle_timeout_s - 0.01)
    assert (types(lone.said), lone.node.ctx.state) == (["worker-hello"], "mingling")
    lone.wait(0.02)

    assert lone.node.ctx.state == "ready"


def test_a_bus_that_comes_and_goes_does_not_hold_the_start_up() -> None:
    lone = Lone(job())
    lone.do(lone.node.bus_changed, False)
    lone.do(lone.node.start, None)

    for _ in range(10):
        lone.wait(SETTINGS.mingle_timeout_s / 4)
        lone.do(lone.node.bus_changed, True)
        lone.do(lone.node.bus_changed, False)

    assert lone.node.ctx.state == "ready"


def test_without_a_bus_a_node_starts_all_the_same() -> None:
    lone = Lone(job())
    lone.do(lone.node.bus_changed, False)
    lone.do(lone.node.start, None)

    lone.wait(SETTINGS.mingle_timeout_s + 0.01)

    assert lone.node.ctx.state == "ready"
    lone.do(lone.node.bus_changed, True)
    assert "worker-hello" in types(lone.said)


def test_whoever_is_deaf_finds_nobody_dead() -> None:
    lone = Lone(job(), peers=("b.1", "c.1")).ready()
    lone.do(lone.node.bus_changed, False)

    lone.wait(60.0)
    lone.do(lone.node.bus_changed, True)
    lone.wait(SETTINGS.heartbeat_interval_s)
    lone.hear("b.1", WorkerHeartbeat(state="ready"))

    assert {m.hostname: m.state for m in lone.node.ctx.membership.members.values()} == {"b": "alive", "c": "alive"}
    assert lone.node.ctx.membership.count()["lost"] == 0
    assert not [notice for notice in lone.notices if notice.event == "node.lost"]


def test_who_stays_silent_when_the_bus_is_back_is_lost_after_its_time() -> None:
    lone = Lone(job(), peers=("b.1", "c.1")).ready()
    lone.do(lone.node.bus_changed, False)
    lone.wait(60.0)
    lone.do(lone.node.bus_changed, True)

    for _ in range(5):
        lone.hear("b.1", WorkerHeartbeat(state="ready"))
        lone.wait(SETTINGS.heartbeat_interval_s)

    assert {m.hostname: m.state for m in lone.node.ctx.membership.members.values()} == {"b": "alive", "c": "lost"}


# ---- another node with our name


def test_a_newcomer_yields_to_the_live_node_of_its_name() -> None:
    lone = Lone(job())
    lone.do(lone.node.start, ("a.9",))

    lone.hear("a.9", WorkerHelloReply(to="a.1", state="ready"), incarnation="1-0")

    assert "another live node is named 'a' (pid 9)" in lone.fatal
    lone.wait(10.0)
    assert lone.node.ctx.state == "stopping"  # the node takes part in nothing any more
    assert "worker-online" not in types(lone.said)


def test_the_live_node_answers_the_newcomer_and_goes_on() -> None:
    lone = Lone(job()).ready()

    lone.hear("a.9", WorkerHello(), incarnation="2-z")

    assert [(to, event_type(event)) for to, event in lone.unicasts] == [("a.9", "worker-hello-reply")]
    assert (lone.node.ctx.state, lone.fatal) == ("ready", "")


@pytest.mark.parametrize(("mine", "theirs"), [("1-aa", "1-bb"), ("2-aa", "1-bb"), ("9-aa", "10-bb"), ("3-aa", "3-ab")])
def test_of_two_that_start_at_once_exactly_one_yields(mine: str, theirs: str) -> None:
    yields = []
    for own, other in ((mine, theirs), (theirs, mine)):
        lone = Lone(job())
        lone.node.ctx.incarnation = own
        lone.do(lone.node.start, ("a.9",))
        lone.hear("a.9", WorkerHello(state="mingling"), incarnation=other)
        yields.append(bool(lone.fatal))

    assert sorted(yields) == [False, True]


def test_the_late_hello_of_a_predecessor_stops_nobody() -> None:
    lone = Lone(job())
    lone.node.ctx.incarnation = "10-aa"  # the tenth boot; compared as text it would be lower than the ninth
    lone.do(lone.node.start, ("b.1",))

    lone.hear("a.7", WorkerHello(state="mingling"), incarnation="9-ff")
    lone.hear("a.7", WorkerOffline(), incarnation="9-ff")

    assert (lone.node.ctx.state, lone.fatal) == ("mingling", "")


def test_our_own_echo_and_another_cluster_are_nobody() -> None:
    lone = Lone(job())
    lone.do(lone.node.start, ("b.1",))

    lone.hear("a.1", WorkerHello(), incarnation="1-a")
    lone.hear("a.9", WorkerHello(), incarnation="9-z", cluster="elsewhere")
    lone.hear("b.1", WorkerHello(), cluster="elsewhere")

    assert (lone.fatal, lone.unicasts, lone.node.ctx.membership.members) == ("", [], {})
