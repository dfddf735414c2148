"""The seams: the services' needs as Protocols. Adapters implement them; tests use implementations in memory.

No library's exception crosses a port: an adapter raises UnavailableError if there was no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from coordd.core.jobs.applications import Application
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.fires import Decided
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.rows import AttemptRow, Hold, Row
from coordd.core.ledger.runner_requests import Request
from coordd.core.trace import Span
from coordd.core.triggers.files import Found
from coordd.core.triggers.messages import Batch

A = TypeVar("A", bound=Answer | OpenAnswer)


class Ledger(Protocol):
    """The one authority over launches. Blocking: the ledger service calls it from a worker thread.

    ``ask`` does one operation (core.ledger.requests) and raises UnavailableError when there was no answer in time;
    whether the operation took place is then unknown, and asking again is safe.
    """

    @property
    def url(self) -> str:
        """For people, without a password."""

    def ask(self, request: Request[A]) -> A: ...
    def run(self, run: str) -> Row | None: ...

    def recorded(self, runs: Sequence[str]) -> set[str]:
        """Those of these runs (at most 1,000) that have a row, with one round trip."""

    def runs(self, *, job: str = "", state: str = "", limit: int = 100) -> list[Row]: ...
    def attempts(self, run: str) -> list[AttemptRow]: ...
    def status(self) -> dict[str, Any]: ...

    def fires(self, job: str) -> Decided:
        """The record of a job's fire times without a row."""

    def fired(self, job: str, after: float, upto: float, limit: int = 1000) -> list[Row]:
        """A job's scheduled runs that are due after ``after``, up to ``upto``, oldest first; not those that were
        revoked before any claim.
        """

    def succeeded(self, jobs: Sequence[str]) -> dict[str, float]:
        """The end (Unix seconds) of the last success of each job that has one, since this version is in use."""

    def mark(self, key: str) -> Hold | None:
        """The hold of that key of OF_INPUT (core/ledger/rows.py), also if its end is over."""

    def marks(self, prefix: str) -> dict[str, Hold]:
        """The same for all keys that begin so."""

    def ended_ago(self, rank: int) -> float | None:
        """How long ago (seconds, by the ledger's clock) a run ended after which ``rank`` others have ended; None: there
        is none.
        """

    def prune(self, keep_s: float, limit: int = 1000) -> int:
        """Forget at most ``limit`` runs that ended over ``keep_s`` ago by the ledger's clock; returns how many.

        With the limit 0 it asks whether the ledger would write a new row: raises UnavailableError if not.
        """

    def close(self) -> None: ...


# Optional interfaces. A caller that needs one checks with isinstance.


@runtime_checkable
class Batching(Protocol):
    """A ledger that performs many operations in the time of one: a round trip, or a commit."""

    def ask_all(self, batch: Sequence[Request[Answer | OpenAnswer]]) -> list[Answer | OpenAnswer]:
        """Perform them in order. Raises UnavailableError for all of them."""


@runtime_checkable
class OnLoop(Protocol):
    """A ledger over a network that trio's own loop can ask, without a thread."""

    @property
    def is_open(self) -> bool:
        """True while it has a connection; only a blocking request opens one."""

    async def ask_here(self, batch: Sequence[Request[Answer | OpenAnswer]]) -> list[Answer | OpenAnswer]:
        """As ``Batching.ask_all``."""


@runtime_checkable
class Portable(Protocol):
    """A ledger whose rows can be exported and imported."""

    def export(self) -> Iterator[dict[str, Any]]:
        """All rows, as JSON objects: jobs, then each run with its attempts."""

    def import_(self, rows: Iterable[dict[str, Any]], *, replace: bool = False) -> int:
        """Import the rows of an export, all or none; returns how many. Raises RefusedError."""


@runtime_checkable
class Quarantined(Protocol):
    """A ledger that can go back, and then grants nothing for a while."""

    def accept_epoch(self) -> float:
        """End the quarantine; returns the seconds that were left of it."""


@runtime_checkable
class Verifiable(Protocol):
    """A ledger whose file can be checked."""

    def integrity(self) -> list[str]:
        """The problems of the file, a sentence each."""


class Applications(Protocol):
    """A cluster manager's applications. Blocking; each call raises UnavailableError if nobody can tell."""

    kind: str
    place: str

    def find(self, mark: str, known: Collection[str] = (), tokens: Collection[int] = ()) -> list[Application]:
        """All applications of a run, also ended. ``known``: ids certainly of it. ``tokens``: of its known attempts."""

    def of_cluster(self, mark: str) -> list[Application]:
        """All applications of a coordd cluster, also ended ones."""

    def end(self, ident: str) -> None:
        """Ask for the end of one."""

    def hidden(self, known: Collection[str] = (), *, ended: bool = False, named: str = "") -> dict[str, str]:
        """By id, why living applications may be the run's and are not recognised yet. ``ended``: also those that have
        ended, unless they surely failed or were killed. ``named``: the id that spark-submit has printed.
        """

    def keeps_since(self, since: float) -> str:
        """Why one that was submitted after ``since`` (Unix seconds) may have been forgotten; "": it cannot."""


class Bus(Protocol):
    """Gossip: datagrams to all other nodes, or to one. It may lose, duplicate and reorder; it never blocks."""

    url: str

    @property
    def state(self) -> str:
        """starting | connected | disconnected | off (there is none)."""

    @property
    def error(self) -> str:
        """Why it is not connected, for people; otherwise ""."""

    def publish(self, data: bytes, confirmed: Callable[[bool], None] | None = None) -> None:
        """Send to every other node; a message that a slow peer cannot take is dropped and counted.

        A message that must arrive has ``confirmed``, which is called once, later or at once: True if the transport took
        responsibility for the message, False if it may be lost (then the caller keeps it).
        """

    def send(self, name: str, data: bytes) -> None:
        """Send to the inbox of one full_hostname."""

    def peers(self) -> Sequence[str] | None:
        """The full_hostnames that the transport knows (for mingling), without our own; None if it cannot tell."""

    async def receive(
        self,
        deliver: Callable[[bytes], None],
        dead: Callable[[str], None],
        changed: Callable[[bool], None] = lambda _up: None,
    ) -> None:
        """Run for ever. Calls ``deliver`` for each message, then once with b"" when a burst is over; ``dead`` with a
        full_hostname that has no listener any more; ``changed`` with True when a connection is up and False when it was
        lost (a bus without connections never calls it).
        """

    def statistics(self) -> dict[str, int]:
        """Counters: published, delivered, bytes, dropped."""

    def close(self) -> None: ...


class Message(NamedTuple):
    """A message that must arrive and could not be sent yet. ``at``: when it was made; ``until``: when it becomes
    useless (Unix seconds).
    """

    number: int  # grows with each message of a node, also over restarts
    at: float
    until: float
    data: bytes


class Backlog(Protocol):
    """Stored messages, in the order of their numbers. Blocking; each method raises UnavailableError."""

    count: int
    bytes: int
    oldest_at: float  # unix seconds; 0.0 without any

    def append(self, messages: Sequence[Message], now: float) -> int:
        """Store them, in one transaction; returns how many of the oldest were dropped because it was full."""

    def first(self, limit: int) -> list[Message]:
        """The first messages, at most this many."""

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove messages that have arrived, or are useless by now."""

    def close(self) -> None: ...


class Journal(Protocol):
    """A node's own append-only record, one JSON object per line."""

    def append(self, records: Sequence[dict[str, Any]], *, sync: bool) -> None:
        """Write records in order; with ``sync`` they are on the disk when this returns.

        Raises UnavailableError when the disk refuses them.
        """

    def close(self) -> None: ...


class Notifier(Protocol):
    """The service manager."""

    watchdog_s: float | None

    def notify(self, *lines: str) -> None:
        """Send assignments such as READY=1 or STATUS=…; silent when nobody listens."""


class Launcher(Protocol):
    """Starts runners, and finds running ones."""

    def start(self, spec: dict[str, Any]) -> str:
        """Start the runner of one attempt; returns the path of its directory.

        Raises UnavailableError when the operating system refuses.
        """

    def command(self, directory: str, word: str, reason: str) -> bool:
        """Tell a runner to cancel; False if it is gone."""

    def scan(self) -> list[str]:
        """The directories of all runners that this daemon or an earlier one has started."""

    def clear_away(self) -> None:
        """Remove directories without an attempt; called before the first start."""

    def spec(self, directory: str) -> dict[str, Any]:
        """The spec, without its secrets. Raises UnavailableError when it cannot be read."""

    def facts(self, directory: str) -> list[dict[str, Any]]:
        """The runner's facts so far, oldest first."""

    def alive(self, directory: str) -> bool:
        """True if the runner, or a watcher that still has to end something, is alive."""

    def bury(self, directory: str) -> None:
        """Runner and watcher are gone without a report: end everything that they left. If it is certain then that the
        attempt is over, report it lost. Raises UnavailableError when that cannot be begun.
        """

    def buried(self, directory: str) -> bool:
        """True if a watcher has ended everything that was left, even if the disk refused its report."""

    def fact(self, line: bytes) -> dict[str, Any] | None:
        """A fact from a poke; None if it is invalid."""

    def restore(self, directory: str) -> None:
        """Create the directory of a living attempt again, if somebody has removed it."""

    def wake(self, directory: str) -> bool:
        """Let a living attempt whose runner and watcher are both stopped be guarded again; True if it was so."""

    def forget(self, directory: str) -> None:
        """Remove an attempt's files."""

    def records(self) -> list[tuple[str, dict[str, Any], str]]:
        """The records of attempts in the state directory: (the name of its directory, the spec or {} if it is damaged,
        why the attempt is certainly over or "")."""

    def forget_record(self, name: str) -> None:
        """Remove such a record."""

    def reap(self) -> list[str]:
        """Collect the runners that have exited since the last call."""

    def notices(self) -> list[str]:
        """Why warm parents were given up since the last call."""


# ---- copies elsewhere


class RemoteStore(Protocol):
    """Files elsewhere, by name: a directory, HDFS, an object store. Blocking: called from a worker thread.

    A call raises UnavailableError (it may work later) or RefusedError (it will not), at the latest a little after
    ``timeout_s``; only a disk that hangs can hold it up for longer.
    """

    url: str

    def put(self, name: str, paths: Sequence[str], timeout_s: float) -> int:
        """Store the bytes of these local files, one after the other, under one name; returns how many. The name has all
        of them or does not exist, whatever ends meanwhile; what it had before is replaced.
        """

    def end(self, name: str, limit: int, timeout_s: float) -> bytes:
        """The last bytes of a file. RefusedError with the kind ``no_copy``: there is none."""


class Copy(NamedTuple):
    """A file of this node that is to be copied, or was. ``name``: its path below the state directory.

    ``state``: waiting, copied or dead (given up). ``size``: what was copied (bytes). ``next_at`` and ``at`` (when it
    was first seen) in Unix seconds. ``reason``: of the last failure.
    """

    sink: str
    name: str
    state: str = "waiting"
    tries: int = 0
    next_at: float = 0.0
    at: float = 0.0
    size: int = 0
    reason: str = ""


class Mirror(Protocol):
    """Where copies of events go for other programs. It may lose them; it never delays its caller."""

    exchange: str
    error: str  # why nothing arrives there now; ""

    def put(self, key: str, body: bytes) -> None:
        """Send one event under a routing key, now or when there is a connection; the oldest are dropped for it."""

    async def run(self, connected: Callable[[], None]) -> None:
        """Run for ever; ``connected`` is called with each new connection."""

    def statistics(self) -> dict[str, int]:
        """Counters: sent, dropped, lost, waiting, connections."""


class Copies(Protocol):
    """The list of a node's copies, on its disk. Blocking; each method raises UnavailableError."""

    def put(self, copies: Sequence[Copy]) -> None:
        """Write them; each replaces the one of the same sink and name."""

    def drop(self, sink: str, names: Sequence[str]) -> None:
        """Forget them."""

    def below(self, sink: str, directory: str) -> dict[str, Copy]:
        """Those of a sink whose names begin with that directory, by name."""

    def due(self, sink: str, now: float) -> Copy | None:
        """The waiting one that is due first; None if there is none up to ``now``."""

    def get(self, sink: str, name: str) -> Copy | None: ...

    def dead(self, limit: int) -> list[Copy]:
        """Those that were given up, newest first."""

    def counts(self) -> dict[tuple[str, str], int]:
        """How many there are, by sink and state."""

    def close(self) -> None: ...


# ---- job definitions from elsewhere than files


class Kept(NamedTuple):
    """What came from a backend: its name and address, the jobs by name, and of a revision number and digest."""

    source: str
    jobs: dict[str, Any]
    number: int = 0
    digest: str = ""


class Published(NamedTuple):
    """A revision: its number, the digest of its texts, who published it when (Unix seconds) and why. ``texts`` is None
    where only the rest was asked for. ``key`` and ``mac``: as ``seal`` made them, or "".
    """

    number: int
    digest: str
    by: str
    uid: int
    at: float
    note: str
    jobs: int
    key: str = ""
    mac: str = ""
    texts: Any = None


class Vote(NamedTuple):
    """A member's word on a revision: why it cannot use it, or "", and the digest of the definitions that it reads."""

    problem: str
    jobs: str


# (number, digest) -> (id of the key, MAC); ("", "") in a cluster without keys.
Seal = Callable[[int, str], tuple[str, str]]


class Definitions(Protocol):
    """The copy, on this node's disk, of the definitions that came from elsewhere."""

    def load(self) -> tuple[Kept | None, str]:
        """The copy, if there is one, and a sentence for the log if it is unusable."""

    def save(self, kept: Kept) -> None:
        """Replace it. Raises UnavailableError."""


class RevisionStore(Protocol):
    """The published revisions. Each call blocks, and raises UnavailableError."""

    url: str

    def newest(self) -> int:
        """The highest number; 0 without a revision."""

    def listed(self) -> list[Published]:
        """All of them without their texts, newest first."""

    def read(self, number: int) -> Published:
        """One of them with its texts."""

    def publish(
        self, texts: dict[str, str], digest: str, seal: Seal, *, above: int, by: str, uid: int, note: str
    ) -> Published:
        """A new one, under a number higher than ``above``."""

    def vote(self, number: int, member: str, said: Vote) -> None:
        """What this member thinks of it."""

    def votes(self, number: int) -> dict[str, Vote]:
        """What members think of it, by their full hostname."""

    def close(self) -> None:
        """Close the connections."""


class SpanExporter(Protocol):
    """The way of spans to a receiver. It may be called from the daemon's loop: nothing but ``close`` waits."""

    @property
    def counts(self) -> Mapping[str, int]:
        """How many were "sent" and "dropped" since the start; a word that is absent counts 0."""

    @property
    def problem(self) -> str:
        """Why the last spans were not taken; "" if they were."""

    @property
    def waiting(self) -> int:
        """Spans that are not sent yet."""

    def sampled(self, trace: str) -> bool:
        """True if this trace is recorded."""

    def offer(self, spans: Sequence[Span]) -> None:
        """Send them some time; what finds no room is dropped and counted."""

    def close(self, within_s: float) -> None:
        """Send what waits, within this time (seconds); blocks."""


# ---- Spark's drivers


class Driven(NamedTuple):
    """A Spark driver of an attempt on this machine. ``program``: the pid of spark-submit, ``directory``: the attempt's,
    ``conf``: the job's; ``host``: the name of this machine for people; ``user``: whose process it is, "" for our own.
    """

    run: str
    attempt: int
    program: int
    directory: str
    conf: Mapping[str, str]
    host: str
    user: str = ""


class Seen(NamedTuple):
    """How far a driver is: sums over the jobs of its application that Spark keeps. ``ui``: the address of its UI."""

    stages: int
    stages_done: int
    tasks: int
    tasks_done: int
    tasks_failed: int
    ui: str


class DriverUi(Protocol):
    """The UI of one driver."""

    def look(self, application_id: str, within_s: float) -> Seen:
        """Ask it; blocks at most a little longer than that (seconds). ``application_id``: "" if it is not known yet.

        Raises UnavailableError (it may work later) or RefusedError (it never will for this attempt).
        """


class Listing(NamedTuple):
    """The files of one look. ``refused``: (path, why it is left out). ``more``: the look ended at its limit, and there
    are others.
    """

    found: list[Found]
    refused: list[tuple[str, str]]
    more: bool


class Files(Protocol):
    """The files that match a pattern. Called in a thread, and blocks as long as the file system does."""

    def __call__(self, pattern: str) -> Listing:
        """One look. Raises UnavailableError if the directory is not there or cannot be read."""


class MessageQueue(Protocol):
    """A queue or a stream of messages. Each method has a time limit of its own, and raises UnavailableError."""

    async def read(self, most: int) -> Batch:
        """The messages that are not acknowledged yet: at most this number."""

    async def acknowledge(self, places: Sequence[str]) -> None:
        """The runs of these messages are recorded."""

    async def put_aside(self, dead: Sequence[tuple[str, str]]) -> None:
        """Move messages to where people find them: (place, reason)."""

    async def take_back(self, dead: str, *, again: bool) -> bool:
        """Remove one that was put aside; ``again``: put it back into the queue. False if it is not there."""

    async def close(self) -> None:
        """Another node polls: give back the messages that are not acknowledged. Raises nothing."""
