"""The requests and replies of the contract tests with the true scripts, recorded to be repeated with changed scripts.

The tests under a stepped clock depend only on the scripts, so one different reply detects a change. A replay takes a
second; the tests themselves take half a minute.
"""

from __future__ import annotations

import contextlib
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support import servers

from coordd.adapters.ledger import redis_scripts
from coordd.adapters.ledger.redis_scripts import ROOM_OF, SEVERAL, Scripts
from coordd.adapters.ledger.redis_server import Server
from coordd.adapters.ledger.resp import Problem
from coordd.errors import UnavailableError
from lua_mutants import tracing

# A command as it is recorded. For EVALSHA the name of the operation replaces the hash of the script.
Command = tuple[Any, ...]
Exchange = tuple[Command, Any]

# The operations that have a script.
OPERATIONS = (*ROOM_OF, *SEVERAL.values())

# Number of commands that are sent before their replies are compared.
TOGETHER = 100

# A script that takes longer never ends, and Redis then serves nobody.
HANGS_AFTER_S = 5.0

# The name of a test's ledger.
NAME = re.compile(rb"t-[0-9a-f]{32}|(?<=\{coordd:)[^}]+")

REPLICATION_ID = re.compile(rb"[0-9a-f]{40}")

# Replies without a certain order, or about the server itself.
UNORDERED = ("KEYS", "SCAN", "SMEMBERS", "INFO", "CONFIG", "TIME", "DEL", "MEMORY")


def load(path: Path) -> list[Exchange]:
    """The exchanges that ``recorder`` has written, in order."""
    with path.open("rb") as file:
        kept: list[Exchange] = pickle.load(file)  # noqa: S301  # written by this very run
    return kept


@contextlib.contextmanager
def rewritten(rewrite: Callable[[str, str], str]) -> Iterator[None]:
    """Within this context, scripts are changed while they are read."""
    real = redis_scripts._read
    redis_scripts._read = lambda name: rewrite(name, real(name))
    try:
        yield
    finally:
        redis_scripts._read = real


def ledger_of(command: Command) -> bytes:
    """The name of the ledger that a command is about. Each test has a ledger name of its own."""
    for part in command[1:]:
        found = NAME.search(part if isinstance(part, bytes) else str(part).encode(errors="replace"))
        if found:
            return found[0]
    return b""


def by_ledger(kept: list[Exchange]) -> list[list[Exchange]]:
    """The exchanges of each ledger, the shortest list first: so a change that one test notices is found soon."""
    found: dict[bytes, list[Exchange]] = {}
    # a transaction is about one ledger; its first and last command do not name the ledger
    together: list[Exchange] = []
    for exchange in kept:
        together.append(exchange)
        if together[0][0][0] != "MULTI" or exchange[0][0] == "EXEC":
            name = next((name for name in map(ledger_of, (command for command, _ in together)) if name), b"")
            found.setdefault(name, []).extend(together)
            together = []
    assert not together, "a transaction without its end"
    return sorted(found.values(), key=len)


class Interview:
    """Repeats the recorded requests with changed scripts, on its own Redis."""

    def __init__(self, kept: list[Exchange], clock: Callable[[str], str]) -> None:
        """``clock`` is the rewriting of the scripts that the tests use: it adds the stepped clock."""
        self._parts = [
            (part, {command[1] for command, _ in part if command[0] == "EVALSHA"}) for part in by_ledger(kept)
        ]
        self._clock = clock
        true = Scripts(clock)
        self._true = {op: true.text(op) for op in OPERATIONS}
        # Of each traced line: the conversations in which it is executed, by their place in ``_parts``.
        self._executing: dict[str, set[int]] = {}
        self._order = list(range(len(self._parts)))
        self._redis: servers.Redis | None = None

    def trace(self) -> None:
        """Learn which conversations execute each line, by one replay: ``noticed`` leaves out the others."""
        with rewritten(tracing.marked):
            scripts = Scripts(self._clock)
            server = self._serve()
            names = self._load(server, {op: tracing.wrapped(scripts.text(op)) for op in OPERATIONS})
        for place, (part, _) in enumerate(self._parts):
            said = self._differs(server, names, part)
            assert not said, f"a script that notes its lines answers otherwise: {said}"
            lines, _ = server.ask([("SMEMBERS", tracing.TRACE), ("DEL", tracing.TRACE)], server.deadline())
            for line in lines:
                self._executing.setdefault(line.decode(), set()).add(place)
        server.drop()

    def close(self) -> None:
        """Stop the server."""
        if self._redis is not None:
            self._redis.close()
            self._redis = None

    def executing(self, line: str) -> set[int]:
        """The places of the conversations in which that line may be executed; all of them, if nothing was traced."""
        return self._executing.get(line, set()) if self._executing else set(self._order)

    def noticed(self, rewrite: Callable[[str, str], str], line: str = "") -> str:
        """The first reply that differs; "" if all are equal. ``line``: the changed one, as it is traced."""
        try:
            with rewritten(rewrite):
                scripts = Scripts(self._clock)
                texts = {op: scripts.text(op) for op in OPERATIONS}
        except (AssertionError, ValueError) as exc:
            return f"the scripts cannot be read: {exc}"
        server = self._serve()
        try:
            return self._ask(server, texts, line)
        except UnavailableError as exc:
            self.close()  # the server hangs in a script
            return f"no answer: {exc}"
        finally:
            server.drop()

    def _serve(self) -> Server:
        if self._redis is None:
            self._redis = servers.Redis()
            self._redis.start()
        return Server(self._redis.url, HANGS_AFTER_S)

    @staticmethod
    def _load(server: Server, texts: dict[str, bytes]) -> dict[str, Any]:
        """The names of the scripts, or what is wrong with one of them, on an empty server."""
        server.exchange([("FLUSHALL",)], server.deadline())
        return {op: server.ask([("SCRIPT", "LOAD", text)], server.deadline())[0] for op, text in texts.items()}

    def _ask(self, server: Server, texts: dict[str, bytes], line: str) -> str:
        names = self._load(server, texts)
        for name in names.values():
            if isinstance(name, Problem):
                return f"invalid: {name.text}"
        changed = {op for op, text in texts.items() if text != self._true[op]}
        executing = self.executing(line) if line else set(self._order)
        # If no call for a ledger uses the changed script, or executes its line, the replies there cannot differ.
        for turn, place in enumerate(self._order):
            part, uses = self._parts[place]
            if place not in executing or (changed and not uses & changed):
                continue
            if said := self._differs(server, names, part):
                # What notices one change often notices the next one, too.
                self._order.insert(0, self._order.pop(turn))
                return said
        return ""

    @staticmethod
    def _differs(server: Server, names: dict[str, Any], kept: list[Exchange]) -> str:
        """The first reply about one ledger that differs; "" if all are equal."""
        for begin in range(0, len(kept), TOGETHER):
            some = kept[begin : begin + TOGETHER]
            asked = [
                (command[0], names[command[1]], *command[2:]) if command[0] == "EVALSHA" else command
                for command, _ in some
            ]
            for (command, heard), now in zip(some, server.ask(asked, server.deadline()), strict=True):
                if command[0] not in UNORDERED and plain(command[0], now) != heard:
                    return f"{command[1] if command[0] == 'EVALSHA' else command[0]}: {plain(command[0], now)!r:.120}"
        return ""


def plain(command: str, reply: Any) -> Any:
    """A reply in the form that is recorded and compared. Of an error only the first word is kept.

    Fields without a certain order are sorted: the server's hash function orders a large hash (the holds at the end of
    ``open``), Lua's pairs() orders the fields of an answer, and both use a random seed.
    """
    if isinstance(reply, Problem):
        return f"error {reply.word}"
    if isinstance(reply, bytes) and REPLICATION_ID.fullmatch(reply):
        return "a replication id"  # each server has its own
    if not isinstance(reply, list):
        return reply
    if command == "HGETALL":
        return _pairs(reply)
    if command == "EVALSHA" and len(reply) > 2 and len(reply) % 2 == 0 and isinstance(reply[2], bytes):
        return [*reply[:2], *_pairs([plain("", part) for part in reply[2:]])]
    if command == "EVALSHA" and reply[1:2] == [b"open"] and isinstance(reply[-1], list):
        return [*(plain("", part) for part in reply[:-1]), sorted(reply[-1], key=repr)]
    return [plain(command, part) for part in reply]


def _pairs(flat: list[Any]) -> list[Any]:
    return sorted(zip(flat[::2], flat[1::2], strict=True), key=repr)
