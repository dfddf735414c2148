"""The small client of Redis: URLs, invalid replies, unusual servers, TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import servers

from coordd.adapters.ledger.redis_ledger import RedisLedger
from coordd.adapters.ledger.redis_server import Server
from coordd.adapters.ledger.resp import Address, Connection, Problem, Tls, shown
from coordd.core.ledger.requests import ListOpen
from coordd.errors import ConfigError, UnavailableError

END = b"\r\n"
ROOT = str(Path(__file__).parents[3])


@pytest.fixture
def serve() -> Iterator[Callable[..., int]]:
    """A server that sends the given bytes once per connection, whatever the request is."""
    listeners: list[socket.socket] = []

    def start(*said: bytes) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def run() -> None:
            for data in said:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(data)

        threading.Thread(target=run, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for listener in listeners:
        listener.close()


def soon() -> float:
    return time.monotonic() + 5.0


@pytest.mark.parametrize(
    ("url", "hosts", "master", "database", "user", "password", "tls"),
    [
        ("redis://h", [("h", 6379)], "", 0, "", "", False),
        ("redis://h:1/2", [("h", 1)], "", 2, "", "", False),
        ("rediss://u:p%40%2F@h:1/2", [("h", 1)], "", 2, "u", "p@/", True),
        ("redis://:p@[::1]:7/0", [("::1", 7)], "", 0, "", "p", False),
        ("redis://[::1]", [("::1", 6379)], "", 0, "", "", False),
        ("redis+sentinel://a,b:7/m/3", [("a", 26379), ("b", 7)], "m", 3, "", "", False),
        ("rediss+sentinel://u:p@a/m", [("a", 26379)], "m", 0, "u", "p", True),
    ],
)
def test_an_address_is_read(
    url: str, hosts: list[tuple[str, int]], master: str, database: int, user: str, password: str, tls: bool
) -> None:
    read = Address(url)
    assert (read.hosts, read.master, read.database) == (hosts, master, database)
    assert (read.user, read.password, read.tls) == (user, password, tls)
    assert not password or password not in shown(url)
    assert Address(shown(url)).hosts == hosts


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis:",
        "http://h",
        "redis://",
        "redis://h:x",
        "redis://h:0",
        "redis://h:70000",
        "redis://h/x",
        "redis://h/0/1",
        "redis+sentinel://h",
        "redis+sentinel://h/",
        "redis+sentinel://h/m/0/1",
        "redis://:pw@h:x",
    ],
)
def test_what_is_no_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="expected") as caught:
        Address(url)
    assert "pw" not in str(caught.value)


def test_replies_of_every_kind(serve: Callable[..., int]) -> None:
    said = b"+OK\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n*-1\r\n"
    port = serve(said + b"*3\r\n:1\r\n*0\r\n-ERR no\r\n$0\r\n\r\n-LOADING it is\r\n")
    connection = Connection("127.0.0.1", port, soon())
    replies = connection.exchange([("PING",)] * 8, soon())
    connection.close()
    assert replies[:5] == [b"OK", -7, b"a\r\n", None, None]
    assert replies[5][:2] == [1, []]
    assert isinstance(replies[5][2], Problem)
    assert replies[6] == b""
    assert (replies[7].word, replies[7].text) == ("LOADING", "LOADING it is")


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"$x\r\n",
        b"$-2\r\n",
        b"$99999999999\r\n",
        b"*99999999\r\n",
        b"\r\n",
        b"*1\r\n" * 20,
        b"+" + b"x" * 70_000,
        b"$5\r\nab",
        b":\r\n",
        b"",
    ],
)
def test_what_is_no_reply_is_an_unavailable_server(serve: Callable[..., int], said: bytes) -> None:
    connection = Connection("127.0.0.1", serve(said), soon())
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1"):
        connection.exchange([("PING",)], soon())
    connection.close()


def test_nobody_there_and_no_such_host() -> None:
    for host in ("127.0.0.1", "no-such-host.invalid"):
        with pytest.raises(UnavailableError, match=host):
            Connection(host, servers.free_port(), soon())
    with pytest.raises(UnavailableError, match="not a name of a host"):
        Connection("redis..example", servers.free_port(), soon())


def test_a_redirection_is_followed_once(serve: Callable[..., int]) -> None:
    home = serve(b"+HERE\r\n", b"-MOVED 1 127.0.0.1:1\r\n")
    there = serve(f"-MOVED 17 127.0.0.1:{home}\r\n".encode())
    server = Server(f"redis://127.0.0.1:{there}", 5.0)
    assert server.exchange([("GET", "x")], soon()) == [b"HERE"]
    server.drop()
    with pytest.raises(UnavailableError):
        server.exchange([("GET", "x")], soon())


def test_sentinels_are_asked_in_turn_and_the_master_must_be_one(serve: Callable[..., int]) -> None:
    replica = serve(b"*1\r\n$5\r\nslave\r\n")
    knows = f"*2\r\n$9\r\n127.0.0.1\r\n${len(str(replica))}\r\n{replica}\r\n".encode()
    hosts = f"127.0.0.1:{servers.free_port()},127.0.0.1:{serve(b'*-1' + bytes((13, 10)))},127.0.0.1:{serve(knows)}"
    server = Server(f"redis+sentinel://{hosts}/m", 5.0)
    with pytest.raises(UnavailableError, match="not \\(yet\\)"):
        server.connect(soon())
    with pytest.raises(UnavailableError, match="no sentinel names the master"):
        server.connect(soon())


def named(port: int) -> bytes:
    """A sentinel's answer."""
    return f"*2\r\n$9\r\n127.0.0.1\r\n${len(str(port))}\r\n{port}\r\n".encode()


MASTER, REPLICA = b"*1\r\n$6\r\nmaster\r\n", b"*1\r\n$5\r\nslave\r\n"


@pytest.mark.parametrize("stale", ["a replica", "nobody there", "it hangs"])
def test_a_sentinel_that_names_an_old_master_is_believed_no_longer(serve: Callable[..., int], stale: str) -> None:
    new = serve(MASTER, MASTER)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        old = {"a replica": serve(REPLICA), "nobody there": servers.free_port(), "it hangs": silent.getsockname()[1]}
        behind, right = serve(named(old[stale])), serve(named(new), named(new))
        server = Server(f"redis+sentinel://127.0.0.1:{behind},127.0.0.1:{right}/m", 2.0)
        assert server.connect(soon()).name == f"127.0.0.1:{new}"
        assert [port for _, port in server.address.hosts] == [right, behind]
        server.drop()
        assert server.connect(soon()).name == f"127.0.0.1:{new}", "the one that was right is asked first"
        server.drop()


def test_an_old_master_that_two_sentinels_name_is_asked_once(serve: Callable[..., int]) -> None:
    old = serve(REPLICA, MASTER)
    behind = [serve(named(old)), serve(named(old))]
    server = Server("redis+sentinel://{}/m".format(",".join(f"127.0.0.1:{port}" for port in behind)), 2.0)
    with pytest.raises(UnavailableError, match="not \\(yet\\)"):
        server.connect(soon())


def test_a_question_on_an_idle_connection_that_was_closed_is_asked_again(serve: Callable[..., int]) -> None:
    server = Server(f"redis://127.0.0.1:{serve(b'+ONE' + END, b'+TWO' + END)}", 5.0)
    assert server.exchange([("GET", "x")], soon()) == [b"ONE"]
    assert server.exchange([("GET", "x")], soon()) == [b"TWO"]
    server.drop()


@pytest.mark.parametrize("said", [(b"",), (b"+A" + END, b"", b"+B" + END), (b"+A" + END, b"+B", b"+C" + END)])
def test_it_is_asked_again_only_once_and_only_before_an_answer(serve: Callable[..., int], said: tuple[bytes]) -> None:
    """The server closes at once; the second time too; in the middle of an answer."""
    server = Server(f"redis://127.0.0.1:{serve(*said)}", 5.0)
    for _ in said[1:2]:
        server.exchange([("GET", "x")], soon())
    with pytest.raises(UnavailableError):
        server.exchange([("GET", "x"), ("GET", "y")], soon())


def test_scripts_that_rely_on_their_order_are_not_asked_again(serve: Callable[..., int]) -> None:
    """A new server may lack the first one's script, and have the second one's."""
    server = Server(f"redis://127.0.0.1:{serve(b'+ONE' + END, b'+TWO' + END + b'+TWO' + END)}", 5.0)
    server.exchange([("GET", "x")], soon())
    with pytest.raises(UnavailableError):
        server.exchange([("EVALSHA", "a", 0), ("EVALSHA", "b", 0)], soon())


def test_scripts_that_rely_on_their_order_do_not_follow_a_redirection(serve: Callable[..., int]) -> None:
    home = serve(b"+HERE\r\n+HERE\r\n")
    moved = f"-MOVED 1 127.0.0.1:{home}\r\n".encode()
    server = Server(f"redis://127.0.0.1:{serve(moved + moved)}", 5.0)
    two = [("EVALSHA", "a", 0), ("EVALSHA", "b", 0)]
    with pytest.raises(UnavailableError, match="another server of the Redis Cluster"):
        server.exchange(two, soon())
    assert server.exchange(two, soon()) == [b"HERE", b"HERE"]
    server.drop()


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ("WRONGPASS invalid username-password pair", "refuses the user or the password"),
        ("ERR invalid password", "refuses the user or the password"),
        ("ERR AUTH <password> called without any password configured", "refuses the user or the password"),
        ("NOAUTH Authentication required.", "asks for a password"),
        ("LOADING Redis is loading the dataset in memory", "is loading its data set"),
        ("ERR max number of clients reached", "takes no more clients"),
        ("DENIED Redis is running in protected mode because no password is set", "protected mode"),
        ("ERR unknown command 'AUTH', with args beginning with: 'secret'", "refused the login (ERR)"),
        ("WEIRD secret", "refused the login (WEIRD)"),
    ],
)
@pytest.mark.parametrize("url", ["redis://:secret@127.0.0.1:{}", "redis://:secret@127.0.0.1:{}/3"])
def test_a_refused_login_says_why_and_shows_no_password(
    serve: Callable[..., int], url: str, refusal: str, said: str
) -> None:
    """Some servers close the connection after their first refusal, whatever else was asked."""
    rest = "" if refusal.startswith(("DENIED", "ERR max")) else "+OK\r\n"
    server = Server(url.format(serve(f"-{refusal}\r\n{rest}".encode())), 2.0)
    with pytest.raises(UnavailableError) as info:
        server.connect(soon())
    assert said in str(info.value)
    assert "secret" not in str(info.value)
    assert ("ledger_password_file" in str(info.value)) == ("password" in said or "protected" in said)


@pytest.mark.parametrize("refusal", ["ERR max number of clients reached", "DENIED Redis is running in protected mode"])
def test_a_server_that_takes_no_connection_says_so_without_a_login(serve: Callable[..., int], refusal: str) -> None:
    server = Server(f"redis://127.0.0.1:{serve(f'-{refusal}'.encode() + END)}", 2.0)
    with pytest.raises(UnavailableError, match="takes no more clients" if "max" in refusal else "set requirepass"):
        server.exchange([("GET", "x"), ("GET", "y")], soon())


@pytest.mark.parametrize("by", ["sentinel", "cluster"])
def test_an_address_that_a_server_named_and_its_certificate_has_not(tmp_path: Path, by: str) -> None:
    """Sentinel and Redis Cluster name IPs unless they are told otherwise; [cluster] ledger has no part in it."""
    made = servers.certificates(tmp_path, "localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.cert, made.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        said = named(port) if by == "sentinel" else f"-MOVED 1 127.0.0.1:{port}\r\n".encode()

        def answer() -> None:
            for _ in range(2):
                with contextlib.suppress(OSError):
                    plain, _ = listener.accept()
                    with plain, context.wrap_socket(plain, server_side=True) as stream:
                        stream.recv(65536)
                        stream.sendall(said)

        threading.Thread(target=answer, daemon=True).start()
        url = f"rediss+sentinel://localhost:{port}/m" if by == "sentinel" else f"rediss://localhost:{port}"
        server = Server(url, 5.0, tls=Tls(ca=made.ca))
        advice = "resolve-hostnames yes" if by == "sentinel" else "cluster-announce-hostname"
        with pytest.raises(UnavailableError, match=advice) as info:
            server.exchange([("GET", "x")], soon())
        assert "[cluster] ledger" not in str(info.value)


def test_tls_is_verified(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    made, other = servers.certificates(tmp_path), servers.certificates(tmp_path / "other")
    with servers.redis(tls=made) as own:
        ledger = RedisLedger(own.tls_url, 5.0, tls_ca=made.ca, tls_cert=made.cert, tls_key=made.key, fresh=True)
        ledger.ask(ListOpen())
        ledger.close()
        for ca in ("", other.ca):
            with pytest.raises(UnavailableError, match=r"(?i)certificate"):
                RedisLedger(own.tls_url, 5.0, tls_ca=ca).ask(ListOpen())
        ledger = RedisLedger(own.tls_url, 5.0, tls_verify=False)
        ledger.ask(ListOpen())
        ledger.close()
        with pytest.raises(UnavailableError, match="TLS files"):
            Tls(ca=str(tmp_path / "absent")).wrap("127.0.0.1", own.tls_port, soon())


def test_a_runner_loads_nothing_that_is_slow() -> None:
    code = (
        "import sys; before = set(sys.modules); from coordd.runner.asker import load_ledger;"
        "load_ledger('redis://h')('redis://h'); print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    slow = {"typing", "json", "re", "ssl", "socket", "enum", "hashlib", "urllib", "dataclasses", "redis", "asyncio"}
    assert not slow & set(loaded.stdout.split())
