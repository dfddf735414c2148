"""Reads the log of an attempt, wherever it ran: on this node from its file, on another by questions, piece by piece.

The reader asks for each piece, so a slow one waits alone: nothing is kept for it anywhere.
"""

from __future__ import annotations

import codecs
import math
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import trio

from coordd.core.ledger.rows import AttemptRow, Row
from coordd.core.ledger.sound import attempt_fault, run_fault
from coordd.core.ledger.words import RECEIVED, STARTED, TERMINAL, UNKNOWN
from coordd.core.members.membership import ALIVE, SUSPECT
from coordd.core.node.node import Node
from coordd.errors import CoorddError, RefusedError, RemoteProtocolError, UnavailableError
from coordd.ports import Ledger
from coordd.services.ledger import LedgerService
from coordd.services.logs.answering import Answering
from coordd.services.logs.files import Place
from coordd.services.logs.questions import LOG, Question, Reader, Told, told_of
from coordd.services.relay import Relay

# How long (seconds) another node has for an answer, and how often it is asked: the bus may lose a message.
ANSWER_S = 2.0
TRIES = 3

# The end of a log, 768 KiB at most, must be there within this time (seconds).
END_S = 20.0

# How often (seconds) a growing log is read: here, and on another node. And how often the ledger is asked what became of
# an attempt that is over, or of which nothing is heard.
FOLLOW_S = 0.25
FOLLOW_AFAR_S = 0.5
LOOK_S = 1.0

# After this silence (seconds) an attempt that is over writes no more.
QUIET_S = 1.0

# A stream sends a sign of life at least this often (seconds).
ALIVE_S = 15.0

# A follower waits this long (seconds) for a ledger that does not answer.
LEDGER_S = 120.0

# How many callers read the logs of other nodes at a time: of one uid, and in all.
AFAR_OF_ONE_MAX = 4
AFAR_MAX = 16

# The states of an attempt that is not over.
HELD = (RECEIVED, STARTED)


class Found(NamedTuple):
    """What the ledger knows of a run."""

    row: Row
    attempts: Sequence[AttemptRow]

    @property
    def newest(self) -> int:
        """The number of the newest attempt that a node was granted; -1 without any."""
        return max([one.attempt for one in self.attempts], default=self.row.attempt if self.row.node else -1)

    def host(self, attempt: int) -> str:
        """The node that was granted an attempt; "" if the ledger does not know it."""
        names = [one.node for one in self.attempts if one.attempt == attempt]
        name = names[-1] if names else self.row.node if self.row.attempt == attempt else ""
        return name.rpartition(".")[0]

    def is_over(self, attempt: int | None) -> bool:
        """True if nothing more is written: by that attempt, or (None) by any."""
        states = [one.state for one in self.attempts if one.attempt == attempt]
        if attempt is not None and states:
            return states[-1] not in HELD
        return self.row.state in TERMINAL or self.row.state == UNKNOWN


class Whole(NamedTuple):
    """The end of an attempt's log."""

    attempt: int
    host: str
    path: str
    data: bytes
    copy: bool = False  # from the sink: the node is away


class Reading:
    """Reads for the callers of this node."""

    def __init__(self, node: Node, relay: Relay, ledger: LedgerService, here: Answering) -> None:
        self.hostname = node.hostname
        self._node = node
        self._relay = relay
        self._ledger = ledger
        self._here = here
        self._afar: Counter[int] = Counter()

    async def found(self, run: str) -> Found | None:
        """What the ledger knows of a run. Raises UnavailableError."""

        def read(ledger: Ledger) -> Found | None:
            row = ledger.run(run)
            good = [one for one in ledger.attempts(run) if not attempt_fault(one)]
            return None if row is None or run_fault(row) else Found(row, good)

        return await self._ledger.query(read)

    async def piece(self, asked: Question, host: str, *, tries: int = TRIES) -> Told:
        """A piece of a log from the node on which the attempt ran. Raises RefusedError or UnavailableError."""
        if not host:
            raise RefusedError(f"{asked.run}/{asked.attempt} was on no node yet", kind="no_log")
        if host == self._node.hostname:
            return await self._here.read(asked.run, asked.attempt, asked.place, asked.tail)
        name = self._reachable(host, asked)
        for left in range(tries - 1, -1, -1):
            try:
                return told_of(await self._relay.ask_one(LOG, asked.pack(), name, wait_s=ANSWER_S))
            except RemoteProtocolError as exc:
                raise UnavailableError(f"{host}: {exc}") from exc
            except UnavailableError as exc:
                if not left:
                    raise UnavailableError(f"the log of {asked.run}/{asked.attempt} is on {host}: {exc}") from exc
        raise AssertionError("tries is at least 1")

    def _reachable(self, host: str, asked: Question) -> str:
        """The full_hostname of another node. Raises RefusedError if it cannot be asked."""
        where = f"the log of {asked.run}/{asked.attempt} is on {host}"
        if self._here.unsigned:
            raise RefusedError(f"{where}, and {self._here.unsigned}", kind="not_signed", hint=f"ask on {host}")
        member = self._node.members.get(host)
        if member is None or member.state not in (ALIVE, SUSPECT):
            state = member.state if member is not None else "not known here"
            raise RefusedError(
                f"{where}, which is {state}",
                kind="node_not_alive",
                hint="start that node again; with [history] log_sink, ended attempts are copied elsewhere",
            )
        return member.name

    @contextmanager
    def place_afar(self, host: str, uid: int) -> Iterator[None]:
        """One caller reads from this node, which may be another. Raises RefusedError if there are too many."""
        if host == self._node.hostname:
            yield
            return
        if self._afar[uid] >= AFAR_OF_ONE_MAX or self._afar.total() >= AFAR_MAX:
            raise RefusedError(
                f"{self._afar.total()} callers here read logs of other nodes, {self._afar[uid]} of them yours",
                kind="try_later",
                hint="end some of them, or wait a little",
            )
        self._afar[uid] += 1
        try:
            yield
        finally:
            self._afar -= Counter((uid,))

    async def end(self, found: Found, attempt: int | None, reader: Reader, limit: int) -> Whole:
        """The last bytes of an attempt's log; without a number, of the newest attempt that has one.

        Raises RefusedError or UnavailableError.
        """
        newest = found.newest if attempt is None else attempt
        refused: RefusedError | None = None
        for number in range(newest, -1, -1) if attempt is None else (newest,):
            host = found.host(number)
            try:
                with self.place_afar(host, reader.uid):
                    return await self._end(Question(found.row.run, number, reader, tail=limit), host)
            except RefusedError as exc:
                if exc.kind != "no_log":
                    raise
                refused = refused or exc
        raise refused or RefusedError(f"{found.row.run} was on no node yet", kind="no_log")

    async def _end(self, asked: Question, host: str) -> Whole:
        with trio.move_on_after(END_S):
            return await self._pieces(asked, host)
        raise UnavailableError(f"the log of {asked.run}/{asked.attempt} did not come from {host} within {END_S:g} s")

    async def _pieces(self, asked: Question, host: str) -> Whole:
        told = await self.piece(asked, host)
        parts = [told.piece.data]
        room = asked.tail - len(told.piece.data)
        while told.piece.data and told.piece.left and room > 0:
            told = await self.piece(asked._replace(place=told.piece.place, tail=0), host)
            parts.append(told.piece.data[:room])
            room -= len(told.piece.data)
        return Whole(asked.attempt, host, told.path, b"".join(parts))


class Following:
    """One reader of a growing log, from its beginning (or its last ``tail`` bytes) until the run ends, through
    takeovers and retries; with a number, only that attempt.
    """

    def __init__(self, reading: Reading, run: str, attempt: int | None, reader: Reader, tail: int) -> None:
        self._reading = reading
        self._run = run
        self._only = attempt
        self._reader = reader
        self._tail = tail
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = -1  # the attempt that is read now
        self._host = ""
        self._place: Place | None = None
        self._held = ExitStack()  # the place among those who read from another node
        self._heard_at = self._said_at = trio.current_time()  # output, or a new attempt; any message to the caller
        self._silent: CoorddError | None = None  # why nothing is heard of the attempt
        self._noted = ""
        self._printed = False
        self._ledger_until = math.inf

    async def messages(self, found: Found) -> AsyncGenerator[dict[str, Any], None]:
        """The messages of the stream. Raises RefusedError or UnavailableError if the end cannot be read."""
        with self._held:
            self._go_to(found.newest if self._only is None else self._only, found)
            while True:
                told = await self._pull()
                if told is not None and (told.piece.data or told.piece.lost):
                    for message in self._news(told):
                        yield message
                    continue
                quiet = trio.current_time() - self._heard_at >= QUIET_S
                if told is not None and not (told.over and quiet):
                    await trio.sleep(FOLLOW_S if self._host == self._reading.hostname else FOLLOW_AFAR_S)
                else:  # it is over, or nothing is heard of it: what does the ledger know?
                    found = await self._look(found)
                    note, over = self._goes_on(found)
                    if note:
                        yield self._says(note=note)
                    if over:
                        return
                    await trio.sleep(LOOK_S)
                if trio.current_time() - self._said_at >= ALIVE_S:
                    yield self._says(alive=True)

    async def _pull(self) -> Told | None:
        """The next piece; None if nothing is heard of the attempt. Raises RefusedError if that will not change."""
        self._silent = None
        tail = self._tail if self._place is None else 0
        asked = Question(self._run, self._at, self._reader, self._place, tail)
        try:
            return await self._reading.piece(asked, self._host, tries=1)
        except RefusedError as exc:
            if exc.kind not in ("no_log", "node_not_alive"):
                raise
            self._silent = exc
        except UnavailableError as exc:
            self._silent = exc
        return None

    def _news(self, told: Told) -> Iterator[dict[str, Any]]:
        self._place, self._heard_at = told.piece.place, trio.current_time()
        if told.piece.lost:
            yield self._says(note=f"attempt {self._at}: older output was dropped before it was read")
        text = self._decoder.decode(told.piece.data)
        if text:
            self._printed = True
            here = self._host == self._reading.hostname
            yield self._says(text=text, attempt=self._at, node=self._host, here=here)

    def _goes_on(self, found: Found) -> tuple[str, bool]:
        """A note for the person, and whether this is the end. Raises why the end cannot be read."""
        silent = self._silent
        missing = isinstance(silent, RefusedError) and silent.kind == "no_log"
        if self._only is None and found.newest > self._at:
            rest = f"; {silent}: the rest of its output is there" if silent is not None and not missing else ""
            before = f"attempt {self._at} is over{rest}; " if self._at >= 0 else ""
            self._go_to(self._at + 1 if self._at >= 0 else found.newest, found)
            return f"{before}attempt {self._at} is on {self._host}", False
        if found.is_over(self._only):
            if silent is not None and not (missing and self._printed):
                raise silent
            return "", True
        note = "" if silent is None or missing or str(silent) == self._noted else str(silent)
        self._noted = note or self._noted
        return note and f"{note}; following until the run ends", False

    def _go_to(self, attempt: int, found: Found) -> None:
        """Read this attempt from now on."""
        self._at, self._host = attempt, found.host(attempt)
        self._place, self._noted, self._heard_at = None, "", trio.current_time()
        self._decoder.reset()
        self._held.close()
        if self._host:
            self._held.enter_context(self._reading.place_afar(self._host, self._reader.uid))

    async def _look(self, found: Found) -> Found:
        """What the ledger knows now; what was known without an answer. Raises UnavailableError after LEDGER_S."""
        try:
            found = await self._reading.found(self._run) or found
        except UnavailableError:
            self._ledger_until = min(self._ledger_until, trio.current_time() + LEDGER_S)
            if trio.current_time() > self._ledger_until:
                raise
        else:
            self._ledger_until = math.inf
        if self._only is not None:
            self._host = found.host(self._only)
        return found

    def _says(self, **message: Any) -> dict[str, Any]:
        self._said_at = trio.current_time()
        return message
