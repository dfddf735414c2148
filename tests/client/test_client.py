"""coordd.client under asyncio, under trio and blocking: the same calls, answers and errors."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, get_type_hints

import anyio
import pytest
from support.fake_daemon import RUN, STATUS, FakeDaemon, Stream, open_directory, refusal

from coordd import client
from coordd.core.ledger.rows import RUN_COLUMNS, Row
from coordd.errors import RefusedError, RemoteProtocolError, UnavailableError
from coordd.services.control.methods import Methods
from coordd.services.views.objects import run_view

BACKENDS = ("asyncio", "trio")
DEADLINE_S = 30.0

# Methods that are streams, that runners call, or that want their rows in pieces: for ``call`` and ``stream``.
BY_NAME = {
    "events.subscribe", "ledger.export", "ledger.import", "ledger.accept_epoch", "ledger.accept_identity",
    "exec", "exec.commit", "exec.gate", "exec.input", "exec.renew", "exec.report", "exec.restore", "exec.standing",
}  # fmt: skip

# The fields of each answer on which programs may rely (docs/protocol.md, section 10).
FIELDS = {
    client.Status: "node cluster state version pid incarnation clock bus ledger members runs breakers_open uptime_s",
    client.NodeView: "hostname pid incarnation state clock last_seen_s active freq jobs_digest self",
    client.Triggered: "id durable state",
    client.RunShown: "attempts timeline progress",
    client.Why: "id sentence found timeline what_if",
}


@pytest.fixture(params=BACKENDS)
def run(request: pytest.FixtureRequest, daemon: FakeDaemon) -> Callable[..., Any]:
    """Run a function with a connection, under one of the loops."""

    def runs(body: Callable[[client.Connection], Awaitable[Any]], **options: Any) -> Any:
        async def main() -> Any:
            with anyio.fail_after(DEADLINE_S):
                async with client.connect(daemon.path, **options) as coordd:
                    return await body(coordd)

        return anyio.run(main, backend=request.param)

    return runs


def test_a_method_is_called_with_its_parameters(daemon: FakeDaemon, run: Callable[..., Any]) -> None:
    daemon.answers |= {"run.trigger": {"id": "j#7", "durable": "ledger"}, "run.list": [RUN], "run.resolve": {}}

    async def body(coordd: client.Connection) -> None:
        assert (await coordd.status())["node"] == STATUS["node"]
        assert (await coordd.run_trigger("j", {"k": "v"}, id="7"))["durable"] == "ledger"
        assert [found["id"] for found in await coordd.run_list(job="j", limit=1)] == ["j#1"]
        await coordd.run_resolve("j#1", "failed")

    run(body)
    assert daemon.asked == [
        ("status", {}),
        ("run.trigger", {"job": "j", "args": {"k": "v"}, "id": "7"}),
        ("run.list", {"job": "j", "limit": 1}),
        ("run.resolve", {"id": "j#1", "as": "failed"}),
    ]


def test_the_blocking_form_says_the_same(daemon: FakeDaemon) -> None:
    daemon.answers |= {"run.trigger": {"id": "j#7", "durable": "ledger"}, "events.subscribe": Stream({"event": {}})}
    daemon.answers["why"] = refusal("unknown_run", "no run", "look")
    with client.blocking(daemon.path) as coordd:
        assert coordd.status()["node"] == STATUS["node"]
        assert coordd.run_trigger("j", id="7")["id"] == "j#7"
        with pytest.raises(RefusedError) as caught:
            coordd.why("j#1")
        assert (caught.value.kind, caught.value.hint) == ("unknown_run", "look")
        with pytest.raises(RemoteProtocolError, match="not a stream"):
            next(coordd.stream("status"))


def test_an_empty_id_is_not_sent(daemon: FakeDaemon, run: Callable[..., Any]) -> None:
    """A daemon before this version makes a random id of it: the same call twice would be two runs."""

    async def body(coordd: client.Connection) -> None:
        for call in (lambda: coordd.run_trigger("j", id=""), lambda: coordd.alarm_clear("seen", id="")):
            with pytest.raises(
                RefusedError, match='id: expected an id, found ""; leave it out, or give None'
            ) as caught:
                await call()
            assert caught.value.kind == "invalid_params"

    run(body)
    with client.blocking(daemon.path) as coordd, pytest.raises(RefusedError, match="id: expected an id"):
        coordd.publish("q", "body", id="")
    assert daemon.asked == []


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c: c.run_trigger("j", node=""), 'run.trigger: node: expected a node, found ""; leave it out'),
        (lambda c: c.run_trigger(""), 'run.trigger: job: expected a job, found ""; give one'),
        (lambda c: c.node_drain(node=""), 'node.drain: node: expected a node, found ""; leave it out'),
        (lambda c: c.node_resume(""), "node.resume: node: expected a node"),
        (lambda c: c.run_list(job=""), "run.list: job: expected a job"),
        (lambda c: c.run_list(state=""), "run.list: state: expected a text"),
        (lambda c: c.run_revoke(job=""), "run.revoke: job: expected a job"),
        (lambda c: c.why("j#1", without=""), "why: without: expected a text"),
        (lambda c: c.run_resolve("j#1", as_=""), 'run.resolve: as: expected a text, found ""; give one'),
    ],
)
def test_an_empty_text_names_nothing(daemon: FakeDaemon, call: Callable[[Any], Any], said: str) -> None:
    """As on the command line: it is a variable without a value, and not "any node" or "all jobs"."""
    with client.blocking(daemon.path) as coordd:
        with pytest.raises(RefusedError, match=re.escape(said)) as caught:
            call(coordd)
        assert caught.value.kind == "invalid_params"
    assert daemon.asked == []


def test_an_empty_note_or_message_says_what_it_says(daemon: FakeDaemon) -> None:
    daemon.answers |= {"node.drain": {}, "publish": {"id": "1"}}
    with client.blocking(daemon.path) as coordd:
        coordd.node_drain(note="")
        coordd.publish("q", "")
    assert daemon.asked == [("node.drain", {"note": ""}), ("publish", {"to": "q", "body": ""})]


def test_many_tasks_share_a_connection(daemon: FakeDaemon, run: Callable[..., Any]) -> None:
    daemon.answers["why"] = lambda params: {"id": params["id"], "sentence": params["id"] * 2}

    async def body(coordd: client.Connection) -> None:
        found: dict[str, str] = {}

        async def ask(name: str) -> None:
            found[name] = (await coordd.why(name))["sentence"]

        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(ask, str(number))
        assert found == {str(number): str(number) * 2 for number in range(50)}

    run(body)


def test_a_call_that_is_given_up_does_not_disturb_the_next(daemon: FakeDaemon, run: Callable[..., Any]) -> None:
    """Its answer comes late, and is for nobody."""
    late = json.dumps({"id": 1, "result": "late"}).encode() + b"\n"
    daemon.answers["why"] = lambda _params: b""
    daemon.answers["election.list"] = lambda _params: late + json.dumps({"id": 2, "result": []}).encode() + b"\n"

    async def body(coordd: client.Connection) -> None:
        with anyio.move_on_after(0.05):
            await coordd.why("x")
        assert await coordd.election_list() == []

    run(body)


def test_a_stream_is_read_beside_calls(daemon: FakeDaemon, run: Callable[..., Any]) -> None:
    daemon.answers["events.subscribe"] = Stream({"event": {"type": "a"}}, {"event": {"type": "b"}}, {"end": True})

    async def body(coordd: client.Connection) -> None:
        async with coordd.stream("events.subscribe", types=["a"]) as events:
            assert (await coordd.ping())["pong"]
            assert [item async for item in events] == [{"event": {"type": "a"}}, {"event": {"type": "b"}}]
        assert (await coordd.ping())["pong"]

    run(body)
    assert daemon.asked[0] == ("events.subscribe", {"types": ["a"]})


def test_a_stream_that_is_given_up_while_it_is_opened_has_no_messages_that_wait(
    daemon: FakeDaemon, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another task reads its answer; the task that wanted it is cancelled before it sees it."""
    monkeypatch.setattr(client, "WAITING_MAX", 3)
    told = [{"method": "event", "params": {"subscription": 7, "event": {}}} for _ in range(5)]
    lines = [{"id": 2, "result": {"subscription": 7}}, *told, {"id": 1, "result": {"id": "x"}}]
    daemon.answers["why"] = lambda _params: b""
    daemon.answers["events.subscribe"] = lambda _params: b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    async def body(coordd: client.Connection) -> None:
        take, opened = coordd._take, anyio.CancelScope()

        def taken(message: dict[str, Any]) -> None:
            take(message)
            if message.get("id") == 2:
                opened.cancel()

        async def watch() -> None:
            with opened:
                async with coordd.stream("events.subscribe"):
                    await anyio.sleep_forever()  # rarely the answer is there before ``send`` returns: it is closed then

        async def ask() -> None:
            assert (await coordd.why("x"))["id"] == "x"

        monkeypatch.setattr(coordd, "_take", taken)
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            group.start_soon(watch)
        assert opened.cancelled_caught
        assert not coordd._streams

    run(body)


def test_an_error_in_a_stream_is_raised(daemon: FakeDaemon, run: Callable[..., Any]) -> None:
    daemon.answers["run.logs"] = Stream({"text": "x"}, {"error": "gone"})

    async def body(coordd: client.Connection) -> None:
        async with coordd.stream("run.logs", id="j#1", follow=True) as messages:
            with pytest.raises(UnavailableError, match="gone"):
                [item async for item in messages]

    run(body)


def test_a_daemon_that_goes_away_is_unavailable(daemon: FakeDaemon, run: Callable[..., Any]) -> None:
    daemon.answers["doctor"] = lambda _params: None

    async def body(coordd: client.Connection) -> None:
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await coordd.doctor()

    run(body)


class Closing(FakeDaemon):
    """Closes its connections when the test says so, as a daemon does with idle ones."""

    def __init__(self, path: str) -> None:
        self.connections: list[socket.socket] = []
        super().__init__(path)

    def _talk(self, sock: socket.socket) -> None:
        self.connections.append(sock)
        super()._talk(sock)

    def closes_idle(self) -> None:
        """It closes them; the clients see that at once."""
        for sock in self.connections:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def closing() -> Iterator[Closing]:
    with open_directory() as path:
        daemon = Closing(f"{path}/s")
        try:
            yield daemon
        finally:
            daemon.close()


def test_a_blocking_client_that_was_idle_connects_again(closing: Closing) -> None:
    with client.blocking(closing.path) as coordd:
        for count in (1, 2, 3):
            assert coordd.status()["node"] == STATUS["node"]
            assert len(closing.connections) == count
            closing.closes_idle()
    with client.blocking(closing.path) as coordd:
        coordd.status()
        coordd.status()
        assert len(closing.connections) == 4, "one that has not ended is used again"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_connection_that_was_idle_connects_again(closing: Closing, backend: str) -> None:
    async def main() -> None:
        with anyio.fail_after(DEADLINE_S):
            async with client.connect(closing.path) as coordd:
                for count in (1, 2, 3):
                    assert (await coordd.status())["node"] == STATUS["node"]
                    assert (await coordd.ping())["pong"]
                    assert len(closing.connections) == count
                    closing.closes_idle()

    anyio.run(main, backend=backend)
    assert [method for method, _ in closing.asked] == ["status", "ping"] * 3, "each request was sent once"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stream_does_not_move_to_another_connection(closing: Closing, backend: str) -> None:
    closing.answers["events.subscribe"] = Stream({"event": {"type": "a"}})

    async def main() -> None:
        with anyio.fail_after(DEADLINE_S):
            async with client.connect(closing.path) as coordd:
                async with coordd.stream("events.subscribe") as events:
                    await anext(events)
                    closing.closes_idle()
                    with pytest.raises(UnavailableError):
                        await coordd.status()
                    with pytest.raises(UnavailableError):
                        await anext(events)
                assert (await coordd.status())["node"] == STATUS["node"], "nothing is under way any more"

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_request_that_cannot_be_sent_says_why(backend: str) -> None:
    """The errors of anyio have no text."""

    class Broken:
        async def send(self, _line: bytes) -> None:
            raise anyio.BrokenResourceError

        def extra(self, _attribute: object) -> socket.socket:
            return pair[0]

    async def main() -> None:
        coordd = client.Connection("/s", Broken(), 1.0)  # type: ignore[arg-type]  # all that is used
        with pytest.raises(UnavailableError, match="takes no request: BrokenResourceError"):
            await coordd.status()

    pair = socket.socketpair()
    with pair[0], pair[1]:
        anyio.run(main, backend=backend)


def test_a_daemon_that_does_not_answer_is_unavailable(daemon: FakeDaemon, run: Callable[..., Any]) -> None:
    daemon.answers["doctor"] = lambda _params: b""

    async def body(coordd: client.Connection) -> None:
        with pytest.raises(UnavailableError, match="in time"):
            await coordd.doctor()

    run(body, timeout_s=0.1)


@pytest.mark.parametrize("answer", [b"no json\n", b"[]\n"])
def test_what_is_not_coordd_is_said(daemon: FakeDaemon, run: Callable[..., Any], answer: bytes) -> None:
    daemon.answers["doctor"] = lambda _params: answer

    async def body(coordd: client.Connection) -> None:
        with pytest.raises(RemoteProtocolError, match="is it coordd"):
            await coordd.doctor()

    run(body)
    with client.blocking(daemon.path) as coordd, pytest.raises(RemoteProtocolError, match="is it coordd"):
        coordd.doctor()


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_daemon_is_unavailable(tmp_path: Any, backend: str) -> None:
    async def main() -> None:
        with pytest.raises(UnavailableError, match="no daemon answers"):
            async with client.connect(tmp_path / "s"):
                pass

    anyio.run(main, backend=backend)
    with client.blocking(tmp_path / "s") as coordd, pytest.raises(UnavailableError, match="no daemon answers"):
        coordd.ping()


def test_every_method_of_the_socket_has_one() -> None:
    known = set(Methods.table(Methods.__new__(Methods)))
    typed = {method._name for _, method in inspect.getmembers(client.Methods) if isinstance(method, client.Method)}

    assert typed <= known
    assert known - typed == BY_NAME


@pytest.mark.parametrize("answer", FIELDS)
def test_the_types_have_the_fields_that_the_socket_promises(answer: type) -> None:
    assert set(FIELDS[answer].split()) <= set(get_type_hints(answer))


def test_the_type_of_a_run_has_every_field_of_one() -> None:
    assert set(get_type_hints(client.Run)) == {*run_view(Row([0] * len(RUN_COLUMNS)), redacted=False), "progress"}


def test_a_parameter_that_is_a_word_of_python(daemon: FakeDaemon) -> None:
    daemon.answers |= {"job.backfill": {}, "job.fires": []}
    with client.blocking(daemon.path) as coordd:
        coordd.job_backfill("j", from_="2026-03-01", to="2026-04-01", dry_run=True)
        coordd.job_fires("j", from_=0.0)
    assert daemon.asked == [
        ("job.backfill", {"job": "j", "from": "2026-03-01", "to": "2026-04-01", "dry_run": True}),
        ("job.fires", {"job": "j", "from": 0.0}),
    ]


@pytest.fixture
def impatient(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    """Clients wait 2 s for it. A check takes longer, and status is not answered."""

    def slow(_params: Any) -> dict[str, Any]:
        time.sleep(3.0)
        return {"seen": "healthy"}

    daemon.answers["check.run"] = slow
    daemon.answers["status"] = lambda _params: b""
    monkeypatch.setattr(client, "ANSWER_S", 2.0)
    return daemon


def test_a_slow_method_has_its_time(impatient: FakeDaemon, run: Callable[..., Any]) -> None:
    """A check may look for 300 s. A daemon that hangs is found by a ping, and does not cost that time."""

    async def body(coordd: client.Connection) -> None:
        assert (await coordd.check_run("c"))["seen"] == "healthy"
        with pytest.raises(UnavailableError, match="in time"):
            await coordd.status()

    run(body)
    assert [method for method, _ in impatient.asked] == ["ping", "check.run", "status"]


def test_a_slow_method_has_its_time_in_the_blocking_form(impatient: FakeDaemon) -> None:
    with client.blocking(impatient.path) as coordd:
        assert coordd.check_run("c")["seen"] == "healthy"
        with pytest.raises(UnavailableError, match="in time"):
            coordd.status()
    assert [method for method, _ in impatient.asked] == ["ping", "check.run", "status"]


def test_one_timeout_for_all_is_one_for_all(daemon: FakeDaemon, run: Callable[..., Any]) -> None:
    daemon.answers["check.run"] = lambda _params: b""

    async def body(coordd: client.Connection) -> None:
        with pytest.raises(UnavailableError, match="in time"):
            await coordd.check_run("c")

    run(body, timeout_s=1.0)
    with client.blocking(daemon.path, timeout_s=1.0) as coordd, pytest.raises(UnavailableError, match="in time"):
        coordd.check_run("c")
    assert [method for method, _ in daemon.asked] == ["check.run"] * 2
