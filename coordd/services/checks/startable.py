"""Which jobs this node can start. A file system that does not answer costs the jobs that need it, and nobody else.

What a job needs may lie on a disk that hangs, and a system call on such a disk cannot be given up. So threads that
nobody joins ask, one question after the other. If a question has no answer in time, its thread is left to itself and
another one asks the rest; what the first one waits for is not asked again before it has an answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import structlog

from coordd.core.jobs.job import Job

log = structlog.get_logger("health")

# A file system must answer within this time (seconds).
ANSWER_S = 10.0

# The event loop waits this long (seconds) for verdicts about new definitions. A sound disk needs milliseconds.
LOOP_S = 0.5

# A question that takes longer (seconds) when a new look replaces its own is not asked beside itself.
BESIDE_S = 0.1

# With this number of threads that wait for disks no further look begins: each look could add one.
SILENT_MAX = 32

NOT_YET = "it is not known yet whether it can be started here: what it needs is still looked at"


class Question(NamedTuple):
    """One thing that a job needs. Questions of one ``place`` wait for the same disk; ``ask`` blocks, and returns what
    is wrong or "".
    """

    place: object
    about: str
    ask: Callable[[], str]


Ask = Callable[[Job], Iterable[Question]]


class _Asked(NamedTuple):
    """The question that a look waits for, of which job, and since when (monotonic seconds)."""

    job: str
    question: Question
    since: float


class _Look:
    """One look at all jobs."""

    def __init__(self, jobs: Mapping[str, Job], ask: Ask) -> None:
        self.jobs = dict(jobs)
        self.ask = ask
        self.left = list(reversed(self.jobs.items()))
        self.verdicts: dict[str, str] = {}
        self.asked: _Asked | None = None
        self.thread: threading.Thread | None = None  # the one that asks now
        self.over = threading.Event()


class Startable:
    """The knowledge about each job. Any thread may call these methods."""

    def __init__(self, asking: Callable[[], Ask], *, answer_s: float = ANSWER_S) -> None:
        """``asking`` is called once for each look."""
        self._jobs: Mapping[str, Job] = {}
        self._asking = asking
        self._answer_s = answer_s
        self._lock = threading.Lock()
        self._look: _Look | None = None
        self._known: dict[str, tuple[str, str]] = {}  # job -> its digest, and the last verdict
        self._silent: dict[object, float] = {}  # place -> how long (seconds) a thread had waited when it was left

    @property
    def unfinished(self) -> bool:
        """True while a look has jobs left."""
        return self._look is not None and not self._look.over.is_set()

    def take(self, jobs: Mapping[str, Job], most_s: float = LOOP_S) -> dict[str, str]:
        """Look at these jobs from now on; returns what is known after at most ``most_s``."""
        with self._lock:
            self._jobs = jobs
            self._begin()
        self._wait(most_s)
        return self.found()

    def again(self, most_s: float) -> dict[str, str]:
        """Look at the same jobs again."""
        with self._lock:
            self._begin()
        self._wait(most_s)
        return self.found()

    def look(self, most_s: float) -> None:
        """Continue the present look, or begin another one, for at most ``most_s``."""
        with self._lock:
            if not self.unfinished:
                self._begin()
        self._wait(most_s)

    def found(self) -> dict[str, str]:
        """Job -> why this node cannot start it. A job without a verdict keeps that of an earlier look, if its
        definition is the same.
        """
        with self._lock:
            look = self._look
            if look is None:
                return {}
            verdicts = {name: self._verdict(look, name, job) for name, job in look.jobs.items()}
        return {name: problem for name, problem in verdicts.items() if problem}

    def _verdict(self, look: _Look, name: str, job: Job) -> str:
        if name in look.verdicts:
            return look.verdicts[name]
        digest, problem = self._known.get(name, ("", ""))
        return problem if digest == job.digest else NOT_YET

    # ---- with the lock

    def _begin(self) -> None:
        before = self._look
        if before is not None:
            known = {name: (job.digest, self._verdict(before, name, job)) for name, job in before.jobs.items()}
            self._known = {name: one for name, one in known.items() if one[1] != NOT_YET}
            asked = before.asked
            waited_s = time.monotonic() - asked.since if asked is not None else 0.0
            if asked is not None and waited_s > BESIDE_S:
                self._leave(before, asked, waited_s)
            before.thread = None
            before.over.set()
        self._look = _Look(self._jobs, self._asking())
        self._go_on(self._look)

    def _go_on(self, look: _Look) -> None:
        """Ask in a new thread, unless too many wait for disks, or the machine has no room for one: then the next look
        asks, and what was known before holds on.
        """
        if len(self._silent) >= SILENT_MAX:
            look.over.set()
            return
        look.thread = threading.Thread(target=self._judge, args=(look,), name="startable", daemon=True)
        try:
            look.thread.start()
        except RuntimeError as exc:
            log.warning("startable.no_thread", reason=str(exc))
            look.thread = None
            look.over.set()

    def _leave(self, look: _Look, asked: _Asked, waited_s: float) -> None:
        """Its thread may never return."""
        self._silent[asked.question.place] = waited_s
        look.verdicts[asked.job] = self._sentence(asked.question)
        look.asked = look.thread = None
        log.warning("startable.no_answer", job=asked.job, problem=look.verdicts[asked.job])

    def _sentence(self, question: Question) -> str:
        waited_s = round(self._silent[question.place], 1)
        return f"its file system did not answer within {waited_s:g} s: {question.about}"

    # ---- waiting

    def _wait(self, most_s: float) -> None:
        """Until the look is over, at most ``most_s``; threads that wait for too long are left."""
        ends = time.monotonic() + most_s
        while True:
            with self._lock:
                look, now = self._look, time.monotonic()
                if look is None or look.over.is_set():
                    return
                asked = look.asked
                if asked is not None and now - asked.since >= self._answer_s:
                    self._leave(look, asked, self._answer_s)
                    self._go_on(look)
                    continue
                next_s = self._answer_s if asked is None else asked.since + self._answer_s - now
            if now >= ends:
                return
            look.over.wait(min(next_s, ends - now))

    def _judge(self, look: _Look) -> None:
        """Runs in a thread of its own: the jobs that are left."""
        me = threading.current_thread()
        while True:
            with self._lock:
                if look.thread is not me:
                    return
                if not look.left:
                    look.over.set()
                    return
                name, job = look.left.pop()
            try:
                problem = self._problem(look, name, job)
            except Exception as exc:  # whatever a definition makes of it: the others are judged all the same
                log.exception("startable.failed", job=name)
                problem = f"whether it can be started here cannot be judged: {type(exc).__name__}: {exc!s:.300}"
            with self._lock:
                if look.thread is not me:
                    return
                look.verdicts[name] = problem

    def _problem(self, look: _Look, name: str, job: Job) -> str:
        me = threading.current_thread()
        for question in look.ask(job):
            with self._lock:
                if look.thread is not me:
                    return ""
                if question.place in self._silent:
                    return self._sentence(question)
                look.asked = _Asked(name, question, time.monotonic())
            try:
                problem = question.ask()
            finally:
                with self._lock:
                    if look.thread is me:
                        look.asked = None
                    else:
                        self._silent.pop(question.place, None)  # it answers again: the next look asks it
            if problem:
                return problem
        return ""
