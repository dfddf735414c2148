"""The Redis server that holds the ledger: its present address, the login, and the meaning of its errors."""

import os
import time

from coordd.adapters.ledger.resp import Address, Connection, Problem, Tls, shown
from coordd.errors import ConfigError, ForeignLedgerError, FullError, LedgerClosedError, UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

# A longer password is a wrong file.
PASSWORD_BYTES_MAX = 4096

# By the first word of Redis's error: what happened, and what to do.
MEANING = {
    "READONLY": "it is a replica, or was made one; writes need the master",
    "LOADING": "it is loading its data set; wait",
    "OOM": "its memory is full (maxmemory): no new run is recorded or claimed; runs that are under way go on, end and "
    "can be cancelled. Give it more memory (CONFIG SET maxmemory), or keep runs for a shorter time ([history] keep)",
    "MASTERDOWN": "it is a replica that lost its master",
    "NOREPLICAS": "too few replicas are connected (min-replicas-to-write); check them",
    "MISCONF": "it cannot save to its disk and refuses writes; check the disk and the server's log",
    "NOAUTH": "it asks for a password; set cluster.ledger_password_file",
    "WRONGPASS": "it refuses the user or the password; check cluster.ledger_password_file and the user in the URL",
    "NOPERM": "the user lacks a right: it needs those of deploy/acl/redis.rules (docs/operate.md: least privilege)",
    "BUSY": "a script of somebody else keeps it busy",
    "CLUSTERDOWN": "the Redis Cluster is down, or slots are missing",
    "TRYAGAIN": "the Redis Cluster is moving the slot",
    "CROSSSLOT": "this slot is not the ledger's",
    "DENIED": "it is in protected mode, and takes no connection from another machine; set requirepass there, and "
    "cluster.ledger_password_file here",
    "NOSCRIPT": "it forgot the scripts again and again",
}
TOO_MANY = "it takes no more clients (maxclients); raise that, or end idle ones (CLIENT LIST)"

# Begin the errors of a server that refuses the password or the user. Redis before version 6 had no word for that.
WRONG_PASSWORD = ("WRONGPASS", "ERR invalid password", "ERR AUTH ", "ERR Client sent AUTH")

# What to do where the certificate is not for an address that a server named, not [cluster] ledger.
NAMED_BY_SENTINEL = (
    "a sentinel named this address; set sentinel resolve-hostnames yes, announce-hostnames yes and, on each server, "
    "replica-announce-ip NAME, or put the IP into the certificate"
)
NAMED_BY_CLUSTER = (
    "a server of the Redis Cluster named this address; set cluster-announce-hostname NAME and "
    "cluster-preferred-endpoint-type hostname there, or put the IP into the certificate"
)


def connect_failed(url: str, reason: str) -> UnavailableError:
    """A Redis error as the ledger's exception, with advice."""
    return UnavailableError(f"ledger {shown(url)}: {reason}")


class Server:
    """A connection to the present master; after a failure, the next exchange reconnects."""

    def __init__(
        self, url: str, timeout_s: float, *, password: "str | Callable[[], str]" = "", tls: "Tls | None" = None
    ) -> None:
        """``password``: the path of a file that is read at each connection, or a function that is called then."""
        self.address = Address(url)
        self.url = url
        self.timeout_s = timeout_s
        self.loaded: set[str] = set()  # scripts that this connection has loaded
        self._password = password
        self._tls = tls or Tls()
        self._connection: Connection | None = None
        self._moved: tuple[str, int] | None = None

    def deadline(self, limit_s: float = 0.0) -> float:
        """The deadline of a call that begins now: after ``timeout_s``, or its own longer limit."""
        return time.monotonic() + max(self.timeout_s, limit_s)

    def exchange(self, commands: "Sequence[Sequence[str | bytes | int]]", deadline: float) -> "list[Any]":
        """The replies to commands, including NOSCRIPT.

        Raises UnavailableError for every other error; the connection is then dropped.
        """
        replies = self._try(commands, deadline)
        if self.moved(replies):
            if not _repeatable(commands):
                raise connect_failed(self.url, "another server of the Redis Cluster has its slot now")
            replies = self._try(commands, deadline)
        return self.judged(replies)

    def moved(self, replies: "list[Any]") -> bool:
        """True if another server of a Redis Cluster has the slot: the next connection is to that one."""
        moved = next((reply for reply in replies if isinstance(reply, Problem) and reply.word == "MOVED"), None)
        if moved is None:
            return False
        self.drop()
        host, _, port = moved.text.split(" ")[-1].rpartition(":")
        self._moved = (host or self.address.hosts[0][0], int(port))
        return True

    def judged(self, replies: "list[Any]") -> "list[Any]":
        """The same replies. Raises for an error among them, except NOSCRIPT; the connection is then dropped."""
        for reply in replies:
            if isinstance(reply, Problem) and reply.word != "NOSCRIPT":
                self.drop()
                self._moved = None
                raise self._explain(reply)
        return replies

    def ask(self, commands: "Sequence[Sequence[str | bytes | int]]", deadline: float) -> "list[Any]":
        """The replies to commands that may be refused one by one: then a Problem is returned among them."""
        return self._try(commands, deadline)

    def drop(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        self.loaded.clear()
        if connection is not None:
            connection.close()

    @property
    def connection(self) -> "Connection | None":
        """The open connection."""
        return self._connection

    def connect(self, deadline: float) -> Connection:
        """The connection; connects if necessary."""
        if self._connection is None:
            try:
                self._connection = self._open(deadline)
            except UnavailableError as exc:
                self._moved = None
                raise connect_failed(self.url, str(exc)) from exc
        return self._connection

    def _try(self, commands: "Sequence[Sequence[str | bytes | int]]", deadline: float) -> "list[Any]":
        was_open = self._connection is not None
        connection = self.connect(deadline)
        try:
            return connection.exchange(commands, deadline)
        except UnavailableError as exc:
            self.drop()
            # Idle connections are closed by servers and firewalls. Every operation may be repeated (docs/protocol.md).
            if was_open and connection.closed_unheard and _repeatable(commands):
                return self._try(commands, deadline)
            raise connect_failed(self.url, str(exc)) from exc
        except BaseException:
            self.drop()  # a reply may still be on its way
            raise

    def _open(self, deadline: float) -> Connection:
        if self._moved is not None:
            return self._log_in(*self._moved, deadline, advice=NAMED_BY_CLUSTER)
        if self.address.master:
            return self._open_named(deadline)
        failure: UnavailableError | None = None
        for number, (host, port) in enumerate(self.address.hosts, 1):
            try:
                return self._log_in(host, port, _share(deadline, len(self.address.hosts) - number))
            except UnavailableError as exc:
                failure = exc
        assert failure is not None
        raise failure

    def _open_named(self, deadline: float) -> Connection:
        """Ask each sentinel for the master, until one names a server that is it. That one is asked first the next time;
        one that is behind the others, last.
        """
        hosts = self.address.hosts
        said: list[str] = []
        failed: set[tuple[str, int]] = set()
        for number, sentinel in enumerate(list(hosts), 1):
            others = len(hosts) - number
            try:
                named = self._ask_sentinel(*sentinel, _share(deadline, others + 1))
            except UnavailableError as exc:
                said.append(str(exc))
                continue
            try:
                if named not in failed:
                    connection = self._log_in(
                        *named, _share(deadline, others), is_master=True, advice=NAMED_BY_SENTINEL
                    )
                    hosts.remove(sentinel)
                    hosts.insert(0, sentinel)
                    return connection
            except UnavailableError as exc:
                said.append(str(exc))
                failed.add(named)
            hosts.remove(sentinel)
            hosts.append(sentinel)
        raise UnavailableError("no sentinel names the master: " + "; ".join(said))

    def _ask_sentinel(self, host: str, port: int, deadline: float) -> "tuple[str, int]":
        connection = Connection(host, port, deadline, self._tls if self.address.tls else None)
        try:
            (reply,) = connection.exchange([("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.address.master)], deadline)
        finally:
            connection.close()
        if isinstance(reply, list) and len(reply) == 2:
            return reply[0].decode(), int(reply[1])
        problem = reply.text if isinstance(reply, Problem) else f"knows no master {self.address.master!r}"
        raise UnavailableError(f"{host}:{port}: {problem}")

    def _log_in(
        self, host: str, port: int, deadline: float, *, is_master: bool = False, advice: str = ""
    ) -> Connection:
        connection = Connection(host, port, deadline, self._tls if self.address.tls else None, advice)
        try:
            commands: list[tuple[str | int, ...]] = []
            password = self._read_password()
            if password:
                commands.append(("AUTH", self.address.user, password) if self.address.user else ("AUTH", password))
            if self.address.database:
                commands.append(("SELECT", self.address.database))
            if is_master:
                commands.append(("ROLE",))
            replies = connection.exchange(commands, deadline) if commands else []
            for command, reply in zip(commands, replies, strict=True):
                if isinstance(reply, Problem):
                    # Some errors of a login quote its arguments.
                    meaning, text = _meaning(reply), reply.text
                    if command[0] == "AUTH":
                        meaning, text = _meaning(reply, "the server refused the login"), reply.word
                    raise UnavailableError(f"{connection.name}: {meaning} ({text})")
            if is_master and replies[-1][0] != b"master":
                raise UnavailableError(f"{connection.name}: the sentinels call it the master, but it is not (yet)")
        except BaseException:
            connection.close()
            raise
        return connection

    def _read_password(self) -> str:
        if callable(self._password):
            return self._password()
        if not self._password:
            return self.address.password
        try:
            file = os.open(self._password, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.read(file, PASSWORD_BYTES_MAX)
            finally:
                os.close(file)
            return data.decode().strip("\r\n")
        except (OSError, UnicodeDecodeError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else "not text"
            raise UnavailableError(f"the password file {self._password}: {reason}") from exc

    def _explain(self, problem: Problem) -> "UnavailableError | ConfigError":
        name = shown(self.url)
        if problem.word == "FOREIGN":  # the caller makes the sentence: it knows the expected ledger
            return ForeignLedgerError(problem.text.partition(" ")[2])
        if problem.word == "CLOSED":
            return LedgerClosedError(problem.text.partition(" ")[2])
        if problem.word == "SCHEMA":
            return ConfigError(
                f"ledger {name}: written by another major version of coordd (schema {problem.text.partition(' ')[2]});"
                " use that version, or another database or cluster name"
            )
        meaning = _meaning(problem)
        # Before version 7 a script's errors begin with ERR.
        full = problem.word == "OOM" or "OOM command not allowed" in problem.text
        if full:
            meaning = MEANING["OOM"]
        if "unauthenticated" in problem.text:  # for a long command before the login
            meaning = MEANING["NOAUTH"]
        if "unpermitted" in problem.text or "can't run this command" in problem.text or "NOPERM" in problem.text:
            meaning = MEANING["NOPERM"]
        kind = FullError if full else UnavailableError
        return kind(f"ledger {name}: {meaning} ({problem.text[:300]})")


def _repeatable(commands: "Sequence[Sequence[str | bytes | int]]") -> bool:
    """True unless scripts rely on their order: another server may lack the first one's, and have the second one's."""
    return sum(command[0] == "EVALSHA" for command in commands) <= 1


def _meaning(problem: Problem, otherwise: str = "it refused") -> str:
    if problem.is_crowded:
        return TOO_MANY
    word = "WRONGPASS" if problem.text.startswith(WRONG_PASSWORD) else problem.word
    return MEANING.get(word, otherwise)


def _share(deadline: float, others: int) -> float:
    """A deadline that leaves the same time for each of the others."""
    now = time.monotonic()
    return now + max(0.0, deadline - now) / (others + 1)
