"""The ledger of a cluster: core/ledger's rules as Lua scripts on one Redis, or on the master that sentinels name.

Each operation is one script: one atomic step under Redis's own time. If a script finds another replication id than the
stored one, the ledger may have lost its last writes, so the script opens a quarantine.

A runner loads this file before it starts a job, so it imports only the interpreter's own modules and what a runner
asks. redis_rows.py reads rows, and redis_people.py has the operations for people.
"""

import _thread

from coordd.adapters.ledger.redis_scripts import SEVERAL, Scripts, answer, packed, whose
from coordd.adapters.ledger.redis_server import Server, connect_failed
from coordd.adapters.ledger.resp import Problem, Tls, shown
from coordd.core.ledger.identity import IS_CLOSED, IS_FOREIGN, Known, refusal
from coordd.core.ledger.words import BAD
from coordd.errors import BadRowError, ForeignLedgerError, LedgerClosedError, LocalProtocolError, UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from typing import Any, TypeVar

    from coordd.core.ledger.answers import Answer
    from coordd.core.ledger.fires import Decided
    from coordd.core.ledger.open_answer import OpenAnswer
    from coordd.core.ledger.rows import AttemptRow, Hold, Row
    from coordd.core.ledger.runner_requests import Request

    A = TypeVar("A", bound="Answer | OpenAnswer")
    Commands = list[list[str | bytes | int]]
    Steps = Generator[Commands, list[Any], list[Any]]

# How often a server that forgets its scripts between two calls gets them again.
LOADS_MAX = 3

# Maximum number of requests per script; the server serves nobody else meanwhile.
TOGETHER_MAX = 32

# Rows for people are fetched in batches of this size.
ROWS_A_TIME = 200

# The default for the longest lease plus the lag of a replica (seconds).
QUARANTINE_S = 60.0 + 10.0
SHORT_QUARANTINE_S = 2 * 5.0 + 2.0

# A caller that cannot tell whether there was an earlier ledger (runners, tools).
NEUTRAL = "-"
# A caller that has used this cluster's ledger before, in an earlier process.
ACQUAINTED = "?"


class RedisLedger:
    """ports.Ledger over one Redis. One connection; threads take turns. Every call ends within ``timeout_s``."""

    def __init__(
        self,
        url: str,
        timeout_s: float = 2.0,
        *,
        cluster: str = "default",
        quarantine_s: "float | Callable[[], float]" = QUARANTINE_S,
        short_quarantine_s: float = SHORT_QUARANTINE_S,
        fresh: "bool | None" = None,
        known: Known | None = None,
        identity: str = "",
        password: "str | Callable[[], str]" = "",
        password_file: str = "",
        tls_ca: str = "",
        tls_cert: str = "",
        tls_key: str = "",
        tls_verify: bool = True,
        scripts: Scripts | None = None,
    ) -> None:
        """Connects with the first call.

        ``quarantine_s`` is the longest known lease plus the lag of a replica; a function is called for each request,
        because a reload may bring a longer lease. ``fresh`` says that this caller has never seen the cluster's ledger
        (None: it cannot tell); ``known`` stores that, and the used ledger, for several connections of one node. A
        runner has ``identity`` instead: the identity of the ledger that granted its attempt, at this address.
        ``password`` is a text, or a function that is called at each connection; ``password_file`` is read at each
        connection.

        Raises ConfigError when the URL is not that of a Redis ledger.
        """
        self._url = url
        self.timeout_s = timeout_s
        self.cluster = cluster
        # One hash tag for the whole cluster: every script reads several rows, and a Redis Cluster runs a script only
        # where all its keys are.
        self.prefix = f"{{coordd:{cluster}}}:"
        self.known = known or Known({True: "", False: ACQUAINTED, None: NEUTRAL}[fresh], pin=identity)
        self._server = Server(
            url,
            timeout_s,
            password=password_file or ((lambda: password) if isinstance(password, str) and password else password),
            tls=Tls(tls_ca, tls_cert, tls_key, verify=tls_verify),
        )
        self._quarantine_s = quarantine_s
        self._short_quarantine_s = short_quarantine_s
        self._scripts = scripts or Scripts()
        self._turn = _thread.allocate_lock()
        self._closed = False

    # ---- ports.Ledger

    @property
    def url(self) -> str:
        return shown(self._url)

    def ask(self, request: "Request[A]") -> "A":
        """One operation, in one script.

        Raises:
            UnavailableError: no answer in time; whether the operation took place is unknown.
            ForeignLedgerError: it is another ledger than the caller's; nothing took place.
            LedgerClosedError: it was moved elsewhere; nothing took place.
            ConfigError: the ledger is of another major version.
            BadRowError: a row that it needs is damaged; nothing was changed.
        """
        (answer,) = self.ask_all([request])
        if answer.word == BAD:
            raise BadRowError(answer.by)  # type: ignore[union-attr]  # the answer of a sweep has another word
        return answer  # type: ignore[return-value]  # each script answers as its request says

    def ask_all(self, batch: "Sequence[Request[Answer | OpenAnswer]]") -> "list[Answer | OpenAnswer]":
        """Several operations in order, in one round trip. Raises as ``ask`` does, for all of them; but a bad row
        affects only the operations that need it, and becomes their answer.
        """
        questions = together([(request.op, packed(request)) for request in batch])
        return answers_of(questions, self._turned(lambda deadline: self._ask(questions, deadline)))

    def run(self, run: str) -> "Row | None":
        """One run, or None."""
        from coordd.adapters.ledger.redis_rows import row_of  # no runner reads rows
        from coordd.core.ledger.rows import RUN_COLUMNS

        (values,) = self.read([("HMGET", self.key(f"run:{run}"), *RUN_COLUMNS)])
        return row_of(values)

    def recorded(self, runs: "Sequence[str]") -> "set[str]":
        """Those of these runs that are there."""
        found = self.read([("HMGET", self.key(f"run:{run}"), "run") for run in runs]) if runs else []
        return {run for run, (name,) in zip(runs, found, strict=True) if name is not None}

    def runs(self, *, job: str = "", state: str = "", limit: int = 100) -> "list[Row]":
        """Runs for people, newest first, optionally of one job and in one state."""
        (names,) = self.read([("ZREVRANGE", self.key(f"list:{state}:{job}"), 0, limit - 1)]) if limit > 0 else ([],)
        return [row for row in self.rows(names) if job in ("", row.job) and state in ("", row.state)]

    def attempts(self, run: str) -> "list[AttemptRow]":
        """The attempts of one run, first to last."""
        from coordd.adapters.ledger.redis_rows import attempts_of

        (flat,) = self.read([("HGETALL", self.key(f"attempts:{run}"))])
        return attempts_of(flat)

    def fires(self, job: str) -> "Decided":
        """The record of a job's fire times without a row."""
        from coordd.adapters.ledger.redis_people import decided

        return decided(self, job)

    def fired(self, job: str, after: float, upto: float, limit: int = 1000) -> "list[Row]":
        """A job's scheduled runs that are due in that time, oldest first."""
        from coordd.adapters.ledger.redis_people import fired

        return fired(self, job, after, upto, limit)

    def succeeded(self, jobs: "Sequence[str]") -> "dict[str, float]":
        """The end of the last success of each job that has one."""
        from coordd.adapters.ledger.redis_people import succeeded

        return succeeded(self, jobs)

    def mark(self, key: str) -> "Hold | None":
        """The hold of that key, also if its end is over."""
        from coordd.adapters.ledger.redis_people import mark

        return mark(self, key)

    def marks(self, prefix: str) -> "dict[str, Hold]":
        """The same for all keys that begin so."""
        from coordd.adapters.ledger.redis_people import marks

        return marks(self, prefix)

    def status(self) -> "dict[str, Any]":
        """The status of the ledger and its server, and what is less safe than advised."""
        from coordd.adapters.ledger.redis_people import status

        return status(self)

    def ended_ago(self, rank: int) -> "float | None":
        """How long ago a run ended after which ``rank`` others have ended; None: there is none."""
        place = str(rank)
        at, found = self.read([("TIME",), ("ZREVRANGE", self.key("ended"), place, place, "WITHSCORES")])
        return int(at[0]) + int(at[1]) / 1e6 - float(found[1]) if found else None

    def prune(self, keep_s: float, limit: int = 1000) -> int:
        """Forget at most ``limit`` runs that ended longer ago than ``keep_s``; returns how many."""
        from coordd.core.ledger.requests import Prune  # no runner asks this

        return self.ask(Prune(keep_s=keep_s, limit=limit)).token

    def close(self) -> None:
        """Close the connection; a call after it raises UnavailableError."""
        self._closed = True
        # A running call ends by itself, and then closes.
        if self._turn.acquire(timeout=self.timeout_s):
            self._server.drop()
            self._turn.release()

    # ---- for people

    def accept_epoch(self) -> float:
        """A person knows that nothing was lost: end the quarantine. Returns the seconds that were left."""
        from coordd.core.ledger.requests import AcceptEpoch

        return self.ask(AcceptEpoch()).left_s

    def export(self) -> "Iterator[dict[str, Any]]":
        """All rows, as JSON objects: jobs, then each run with its attempts."""
        from coordd.adapters.ledger.redis_people import export

        return export(self)

    def import_(self, rows: "Iterable[dict[str, Any]]", *, replace: bool = False) -> int:
        """Import the rows of an export, all or none; returns how many.

        Raises RefusedError when a row is invalid, or when there are rows already and ``replace`` is not set.
        """
        from coordd.adapters.ledger.redis_people import import_rows

        return import_rows(self, rows, replace=replace)

    # ---- one exchange

    def key(self, name: str) -> str:
        """A key of this cluster."""
        return self.prefix + name

    def rows(self, names: "Sequence[bytes]") -> "Iterator[Row]":
        """Runs by id; runs that were forgotten meanwhile are left out."""
        from coordd.adapters.ledger.redis_rows import row_of
        from coordd.core.ledger.rows import RUN_COLUMNS

        for begin in range(0, len(names), ROWS_A_TIME):
            some = names[begin : begin + ROWS_A_TIME]
            commands = [("HMGET", self.prefix.encode() + b"run:" + name, *RUN_COLUMNS) for name in some]
            for values in self.read(commands) if commands else ():
                row = row_of(values)
                if row is not None:
                    yield row

    def read(
        self, commands: "Sequence[Sequence[str | bytes | int]]", *, refused: bool = False, limit_s: float = 0.0
    ) -> "list[Any]":
        """Plain commands in one round trip. With ``refused``, an error reply is returned as a Problem.

        ``limit_s``: a longer timeout than usual.
        """

        def exchange(deadline: float) -> "list[Any]":
            return (self._server.ask if refused else self._server.exchange)(commands, deadline)

        try:
            return self._turned(exchange, limit_s)
        except UnicodeEncodeError as exc:
            raise LocalProtocolError(f"ledger: a name that no key can hold: {exc}") from exc

    def script(self, op: str, arguments: "Sequence[bytes]") -> "list[str | bytes | int]":
        """The command that runs an operation's script."""
        known = self.known
        asks = (known.epoch, known.pin, int(known.at_home), known.proposal)
        whole_s = self._quarantine_s if isinstance(self._quarantine_s, float | int) else self._quarantine_s()
        terms = (str(float(whole_s)), str(float(self._short_quarantine_s)))
        return ["EVALSHA", self._scripts.name(op), 1, self.prefix, *terms, *asks, *arguments]

    def bring(self, op: str) -> "list[str | bytes | int]":
        """The command that loads an operation's script."""
        return ["SCRIPT", "LOAD", self._scripts.text(op)]

    def _ask(self, questions: "list[tuple[str, list[bytes]]]", deadline: float) -> "list[Any]":
        steps = self._steps(questions, deadline)
        try:
            commands = next(steps)
            while True:
                commands = steps.send(self._exchange(commands, deadline))
        except StopIteration as over:
            replies: list[Any] = over.value
            return replies

    def _steps(self, questions: "list[tuple[str, list[bytes]]]", deadline: float) -> "Steps":
        """Run these scripts without I/O: yields commands, is sent their replies, returns those of the scripts. A thread
        and trio's loop both run it.
        """
        replies: list[Any] = [None] * len(questions)
        todo = list(range(len(questions)))
        missing: set[str] = set()
        if len(questions) > 1:
            # A later request must not overtake an earlier one whose script is not loaded yet.
            missing = {op for op, _ in questions} - self._server.loaded
        for _ in range(LOADS_MAX):
            brought = sorted(missing)
            commands = [self.bring(op) for op in brought] + [self.script(*questions[number]) for number in todo]
            said = (yield commands)[len(brought) :]
            self._server.loaded |= missing
            for number, reply in zip(todo, said, strict=True):
                replies[number] = reply
            todo = [number for number in todo if isinstance(replies[number], Problem)]
            missing = {questions[number][0] for number in todo}
            if not todo:
                break
        if todo:
            raise connect_failed(self.url, "the server forgets its scripts as soon as it has them")
        for one in each_of(questions, replies):  # a server may restart in the middle of a batch
            epoch, self.known.found, self.known.predecessor, grants = whose(one)
            self.known.heard.hear(epoch, grants)
            if self.known.epoch != NEUTRAL:
                self.known.epoch = epoch
        for (op, _), reply in zip(questions, replies, strict=True):
            if op == "gate" and b"replicas" in reply:
                yield from self._wait_for_a_replica(deadline)
        return replies

    def _exchange(self, commands: "Commands", deadline: float) -> "list[Any]":
        """The server's error, with a sentence of this caller if the ledger is closed or foreign."""
        try:
            return self._server.exchange(commands, deadline)
        except (ForeignLedgerError, LedgerClosedError) as exc:
            raise self._refused(exc) from exc

    def _refused(self, exc: "ForeignLedgerError | LedgerClosedError") -> UnavailableError:
        if isinstance(exc, LedgerClosedError):
            return refusal(IS_CLOSED, self.url, self.known)
        self.known.found = str(exc)
        return refusal(IS_FOREIGN, self.url, self.known)

    def _wait_for_a_replica(self, deadline: float) -> "Generator[Commands, list[Any], None]":
        """Before a job without a lease starts, a replica confirms the start, so that a failover cannot forget it."""
        import time

        left_ms = int((deadline - time.monotonic()) * 800)
        if left_ms > 0:  # 0 would mean for ever
            (reached,) = yield [["WAIT", 1, left_ms]]
            if reached >= 1:
                return
        raise connect_failed(self.url, "no replica has confirmed the start of a job that must not run twice")

    def _turned(self, action: "Callable[[float], list[Any]]", limit_s: float = 0.0) -> "list[Any]":
        deadline = self._server.deadline(limit_s)
        if not self._turn.acquire(timeout=self.timeout_s):
            raise connect_failed(self.url, f"no turn within {self.timeout_s:g} s")
        try:
            if self._closed:
                raise connect_failed(self.url, "it was closed")
            return action(deadline)
        finally:
            if self._closed:
                self._server.drop()
            self._turn.release()


def each_of(questions: "list[tuple[str, list[bytes]]]", replies: "list[Any]") -> "Iterator[list[Any]]":
    """The replies of the scripts, one for each operation."""
    for (op, _), reply in zip(questions, replies, strict=True):
        yield from reply if op in SEVERAL.values() else (reply,)


def answers_of(questions: "list[tuple[str, list[bytes]]]", replies: "list[Any]") -> "list[Answer | OpenAnswer]":
    """The scripts' replies as answers, one for each operation."""
    return [answer_of(one) for one in each_of(questions, replies)]


def answer_of(reply: "list[Any]") -> "Answer | OpenAnswer":
    """A script's reply. Raises UnavailableError if it is invalid."""
    try:
        if reply[1] != b"open":
            return answer(reply)
        from coordd.adapters.ledger.redis_rows import open_answer  # no runner sweeps

        return open_answer(reply)
    except (AttributeError, IndexError, OverflowError, TypeError, ValueError) as exc:
        raise UnavailableError(f"ledger: an answer that cannot be read: {exc!s:.200}") from exc


def together(questions: "Sequence[tuple[str, list[bytes]]]") -> "list[tuple[str, list[bytes]]]":
    """The same questions in the same order; neighbours that a single script can answer are one."""
    groups: list[tuple[str, list[list[bytes]]]] = []
    for op, arguments in questions:
        if groups and groups[-1][0] == op and op in SEVERAL and len(groups[-1][1]) < TOGETHER_MAX:
            groups[-1][1].append(arguments)
        else:
            groups.append((op, [arguments]))
    return [
        (op if len(parts) == 1 else SEVERAL[op], [argument for part in parts for argument in part])
        for op, parts in groups
    ]


__all__ = ["Known", "RedisLedger", "UnavailableError"]
