"""The shared state of the parts of a node: its identity, settings, clock, timers, and its output."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from coordd.core.clock import LamportClock
from coordd.core.jobs.job import Job, due_time, fire_time, job_of, unpinned
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.identity import Heard
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import nominal_time
from coordd.core.ledger.runner_requests import Request
from coordd.core.ledger.words import NEVER, NEW_RULES, OLD_RULES
from coordd.core.members.membership import Membership
from coordd.core.ready import LedgerRequest, Notice, Now, Ready
from coordd.core.wire.events import Action, Event

A = TypeVar("A", bound=Answer | OpenAnswer)


def clock_fault(skew_s: float) -> str:
    """What a node with this clock does not do, and why; "" if its clock is near enough. ``skew_s``: how far it is ahead
    of the ledger's.
    """
    if abs(skew_s) <= SKEW_MAX_S:
        return ""
    where = "ahead of" if skew_s > 0 else "behind"
    return f"opens no scheduled run: its clock is {abs(skew_s):.0f} s {where} the ledger's"


class Rng(Protocol):
    """The source of randomness."""

    def getrandbits(self, k: int, /) -> int: ...


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that the core needs. Durations in seconds."""

    cluster: str = "default"
    heartbeat_interval_s: float = 2.0
    election_timeout_s: float = 1.0
    mingle: bool = True
    mingle_timeout_s: float = 1.0
    lease_s: float = 60.0
    renew_interval_s: float = 5.0
    ledger_timeout_s: float = 2.0
    kill_grace_s: float = 10.0
    budget_client: int = 2
    budget_cluster: int = 20
    budget_by: str = ""  # the strategy that says how much of budget_client counts; "": all of it
    budget_min: int = 1
    priority_by: str = ""  # the strategy that orders jobs of one priority; "": by fire time alone
    tags: tuple[str, ...] = ()
    pools: dict[str, int] = {}  # the sizes of pools
    version: str = ""
    system: str = "Linux"


# The delay per rank: two round trips of the ledger, measured, within these bounds (seconds).
STAGGER_MIN_S = 0.01
STAGGER_MAX_S = 1.0

# If a node's wall clock differs from the ledger's by more than this (seconds), it opens no scheduled runs.
SKEW_MAX_S = 10.0

# A peer's token is believed up to this much (seconds) ahead of the ledger's present time, from which tokens are made.
TOKEN_AHEAD_S = 3600.0

# Questions whose answers are waited for. The shell answers every question, and refuses those beyond its own queue, half
# as long: if there are more than these, the oldest answers will never come.
WAITING_MAX = 100_000

# This many earlier definitions of a job are kept, for its runs that still have them.
PAST_MAX = 4

# Scheduled runs are opened this long (seconds) before their fire time.
LEAD_S = 1.0


class Context:
    """Shared by the parts of one node. Nothing outside the core sees it; core/node/shown.py is the visible part."""

    __slots__ = (
        "_armed",
        "_ledger_blur_s",
        "_ledger_from_mono",
        "_next_request",
        "_serial",
        "_waiting",
        "abstaining",
        "aside",
        "bad_rows",
        "braked",
        "budget",
        "clock",
        "clock_off",
        "concurrency",
        "failing",
        "full_hostname",
        "heard",
        "hostname",
        "identity_from",
        "impaired",
        "incarnation",
        "jobs",
        "jobs_digest",
        "launch_problems",
        "leased_s",
        "ledger",
        "loadavg",
        "membership",
        "out",
        "past",
        "pid",
        "pinned",
        "processed",
        "recovering",
        "rng",
        "round_trip_s",
        "runtime_failure",
        "settings",
        "split",
        "state",
        "suspended",
        "timers",
        "tokens",
        "tokens_refused",
    )

    def __init__(
        self, *, hostname: str, pid: int, incarnation: str, settings: Settings, clock: LamportClock, rng: Rng
    ) -> None:
        self.hostname = hostname
        self.pid = pid
        self.full_hostname = f"{hostname}.{pid}"
        self.incarnation = incarnation
        self.settings = settings
        self.clock = clock
        self.rng = rng
        self.heard = Heard()  # all connections of this daemon hear it
        self.membership = Membership(self.full_hostname, settings.heartbeat_interval_s)
        self.jobs: dict[str, Job] = {}
        self.past: dict[str, tuple[Job, ...]] = {}  # job -> its earlier definitions, newest last
        self.jobs_digest = ""
        self.launch_problems: dict[str, str] = {}  # job -> why this node cannot start it (spark-submit missing, …)
        self.abstaining: dict[str, str] = {}  # job -> the check that is bad; node/abstaining.py
        self.leased_s = 0.0  # the longest lease of all active attempts, from the ledger's rows
        self.bad_rows: dict[str, str] = {}  # unusable rows of the ledger, by run or job, and why
        self.impaired = ""  # why its journal cannot be written
        self.runtime_failure = ""  # why its runtime directory cannot be written
        # Set by members/elsewhere.py alone:
        self.failing = ""  # why it wants to stand aside: its runs fail, and succeed elsewhere
        self.aside = ""  # the same while it does
        # Set by drains.py alone:
        self.suspended: frozenset[str] = frozenset()  # jobs whose runs do not start now, by the last sweep
        # Set by brake.py alone:
        self.ledger = ""  # the identity of this node's ledger; "" while unknown
        self.pinned = False  # it has used that ledger
        self.braked = ""  # why it may launch nothing from it now
        self.split = False  # because others use another ledger
        self.tokens_refused = 0  # peers' tokens that the ledger cannot have issued yet
        self.tokens: dict[str, int] = {}  # job -> the highest known token: a witness against a ledger that went back
        # Set by node/vouching.py alone:
        self.recovering = False  # the ledger has told that it is in quarantine
        self.identity_from = NEVER  # from the ledger: later runs have their nominal time in their id
        self.loadavg = (0.0, 0.0, 0.0)
        self.budget: int | None = None  # drivers that may compute here now; None: budget_client
        self.concurrency: Mapping[str, int] = {}  # job -> what its strategy says now
        self.processed = 0
        self.round_trip_s = STAGGER_MIN_S / 2
        self.clock_off = False  # the wall clock differs from the ledger's by more than SKEW_MAX_S
        self._ledger_from_mono: float | None = None  # the ledger's wall clock minus our CLOCK_BOOTTIME
        self._ledger_blur_s = 0.0  # the error of that: half a round trip
        self.state = "starting"
        self.out = Ready()
        self.timers: list[tuple[float, int, str, str]] = []
        self._armed: dict[tuple[str, str], float] = {}  # (kind, key) -> its next wake-up
        self._serial = 0
        self._next_request = 0
        self._waiting: dict[int, Callable[[Any, float, Now], None]] = {}  # question -> who waits for its answer

    @property
    def computing(self) -> int:
        """How many drivers may compute here at present."""
        return self.settings.budget_client if self.budget is None else self.budget

    def loaded(self, average: tuple[float, float, float], budget: int | None, concurrency: Mapping[str, int]) -> None:
        """How loaded this machine is, and how many runs strategies allow now."""
        self.loadavg = (round(average[0], 2), round(average[1], 2), round(average[2], 2))
        self.budget, self.concurrency = budget, concurrency

    # ---- time

    def arm(self, at: float, kind: str, key: str = "") -> None:
        """Wake at ``at`` (mono) or sooner. The woken part checks whether it is due, and arms again if not."""
        if self._armed.get((kind, key), float("inf")) <= at:
            return  # one wake-up at a time: repeated arming must not fill the heap
        self._armed[kind, key] = at
        self._serial += 1
        heapq.heappush(self.timers, (at, self._serial, kind, key))

    def due(self, now: float) -> tuple[str, str] | None:
        """The next due (kind, key), removed from the list; None if nothing is due."""
        while self.timers and self.timers[0][0] <= now:
            at, _, kind, key = heapq.heappop(self.timers)
            if self._armed.get((kind, key)) == at:  # otherwise it was armed for an earlier time, and woken then
                del self._armed[kind, key]
                return kind, key
        return None

    @property
    def stagger_s(self) -> float:
        """The delay per rank (seconds)."""
        return min(STAGGER_MAX_S, max(STAGGER_MIN_S, 2 * self.round_trip_s))

    def compare_clocks(self, ledger_wall: float, sent_at: float, now: Now) -> None:
        """The ledger's wall clock at some instant between ``sent_at`` and now (mono)."""
        self._ledger_blur_s = (now.mono - sent_at) / 2
        self._ledger_from_mono = ledger_wall - sent_at - self._ledger_blur_s
        self.clock_is_off(now)

    def ledger_wall(self, now: Now) -> float:
        """The ledger's wall clock, as far as this node knows; its own where they were not compared."""
        return now.wall if self._ledger_from_mono is None else now.mono + self._ledger_from_mono

    def skew_s(self, now: Now) -> float:
        """How far this node's wall clock is ahead of the ledger's (negative: behind), for certain; 0.0: not compared.

        A step since the last comparison is included, because the other clock never steps.
        """
        if self._ledger_from_mono is None:
            return 0.0
        skew_s = now.wall - now.mono - self._ledger_from_mono
        return max(0.0, skew_s - self._ledger_blur_s) + min(0.0, skew_s + self._ledger_blur_s)

    def clock_is_off(self, now: Now) -> bool:
        """True if this node's wall clock is too wrong to open scheduled runs. Each change is logged once."""
        skew_s = self.skew_s(now)
        off = abs(skew_s) > SKEW_MAX_S
        if off != self.clock_off:
            self.clock_off = off
            self.note("wall_clock.off" if off else "wall_clock.right", seconds=round(skew_s, 1), limit=SKEW_MAX_S)
        return off

    @property
    def unfit(self) -> str:
        """Why this node should launch nothing (its disk is full, …); "" if it may."""
        return self.impaired or self.runtime_failure

    @property
    def rules(self) -> int:
        """The ledger rules in force."""
        return OLD_RULES if self.identity_from == NEVER else NEW_RULES

    def is_named_now(self, action: Action) -> bool:
        """True if, under the rules in force, this id belongs to the job's run that is due then."""
        job = self.jobs.get(action.job)
        if job is None or not action.scheduled or action.digest != job.digest:
            return True  # nobody here knows another definition's times; the ledger decides
        if job.follows is not None:
            return action.fire_at <= action.due_at  # due when the last parent ended
        return action.fire_at == fire_time(job, action.due_at, self.identity_from)

    def due_of(self, run: str) -> float:
        """The due time (with jitter) of a scheduled run of a known job; otherwise 0.0."""
        job, fire_at = self.jobs.get(job_of(run)), nominal_time(run)
        return due_time(job, fire_at, self.identity_from) if job is not None and fire_at is not None else 0.0

    # ---- output

    def publish(self, event: Event, now: Now) -> None:
        """Broadcast an event."""
        self._stamp(event, now)
        self.out.messages.append(event)

    def send(self, name: str, event: Event, now: Now) -> None:
        """Send an event to one node, by full_hostname."""
        self._stamp(event, now)
        self.out.unicasts.append((name, event))

    def _stamp(self, event: Event, now: Now) -> None:
        event.clock = self.clock.forward()
        event.timestamp = now.wall

    def note_down(self, event: Event, now: Now) -> None:
        """Write an event to the journal only."""
        self._stamp(event, now)
        self.out.journal.append(event)

    def record(self, event: Event, now: Now, *, sync: bool = False) -> None:
        """Broadcast an event, and write it to the journal."""
        self.publish(event, now)
        self.out.journal.append(event)
        self.out.journal_sync = self.out.journal_sync or sync

    def ask(self, request: Request[A], on_answer: Callable[[A | Answer, float, Now], None] | None = None) -> None:
        """Ask the ledger. ``on_answer`` is told the answer (UNAVAILABLE when there was none in time), when the question
        was sent (mono), and the time."""
        self._next_request += 1
        if on_answer is not None:
            if len(self._waiting) >= WAITING_MAX:
                del self._waiting[next(iter(self._waiting))]
            self._waiting[self._next_request] = on_answer
        self.out.ledger.append(LedgerRequest(self._next_request, request))

    def answered(self, question: int, answer: Answer | OpenAnswer, sent_at: float, now: Now) -> None:
        """Passes the ledger's answer to the part that asked, once."""
        on_answer = self._waiting.pop(question, None)
        if on_answer is not None:
            on_answer(answer, sent_at, now)

    def note(self, event: str, **fields: object) -> None:
        """Write a notice to the log."""
        self.out.notices.append(Notice(event, fields))

    def name_bad_rows(self, bad: dict[str, str], *, swept: bool = True) -> None:
        """Rows that need a person: each is logged once. A sweep passes all of them."""
        for name, why in bad.items():
            if self.bad_rows.get(name) != why:
                self.note("row.bad", row=name, reason=why)
        self.bad_rows = dict(bad) if swept else {**self.bad_rows, **bad}

    def nonce(self) -> str:
        """The random nonce of a claim."""
        return f"{self.rng.getrandbits(64):016x}"

    def definition(self, job: str, digest: str) -> Job | None:
        """The definition of a job with that digest: the present one, or an earlier one that is still kept.

        None if neither has it, or the job was removed. A run that has its row is executed by the definition of that
        row, also when its job's file was changed meanwhile.
        """
        known = self.jobs.get(job)
        wanted, _ = unpinned(digest)
        if known is None or known.digest == wanted:
            return known
        return next((past for past in self.past.get(job, ()) if past.digest == wanted), None)

    def definition_for(self, action: Action) -> Job | None:
        """The definition by which that run is launched; the present one if this node does not have it."""
        return self.definition(action.job, action.digest) or self.jobs.get(action.job)

    def keep_past(self, before: Iterable[Job]) -> None:
        """Keep definitions that were replaced by others; of removed jobs nothing is kept."""
        past: dict[str, dict[str, Job]] = {}  # job -> digest -> definition, newest last
        for job in (*(one for kept in self.past.values() for one in kept), *before):
            now = self.jobs.get(job.name)
            if now is not None and now.digest != job.digest:
                kept = past.setdefault(job.name, {})
                kept.pop(job.digest, None)
                kept[job.digest] = job
        self.past = {name: tuple(kept.values())[-PAST_MAX:] for name, kept in past.items()}

    def lease_of(self, job: str) -> float:
        """The lease (seconds) of that job's runs, as far as this node knows."""
        known = self.jobs.get(job)
        return known.lease_s if known else self.settings.lease_s

    def saw_token(self, job: str, token: int) -> None:
        """Remember the highest token of a job."""
        if token > self.tokens.get(job, 0):
            self.tokens[job] = token

    def told_token(self, job: str, token: int, peer: str, now: Now) -> None:
        """A peer reports a token. One from the future would make us refuse every future grant."""
        if token <= (self.ledger_wall(now) + TOKEN_AHEAD_S) * 1e6:
            self.saw_token(job, token)
            return
        self.tokens_refused += 1
        if self.tokens_refused & (self.tokens_refused - 1) == 0:  # 1, 2, 4, 8, …: a flood must not fill the log
            self.note("token.not_believed", peer=peer, job=job, token=token, count=self.tokens_refused)
