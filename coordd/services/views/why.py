"""`coordctl why`: explains one run or one job in a sentence, from recorded facts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from coordd.core.election import Election
from coordd.core.jobs.job import EXEC_DIGEST, Job, iso, job_of, unpinned
from coordd.core.ledger.breaker.text import PREVENTED_BY
from coordd.core.ledger.rows import AttemptRow, Hold, Row, is_backfill, is_rerun
from coordd.core.ledger.sound import attempt_fault, bad_run, run_fault
from coordd.core.ledger.words import Policy
from coordd.core.members.outcomes import Known
from coordd.core.names import host_of
from coordd.core.node.node import Node
from coordd.core.runs.pursued import HELD_BY_OTHER, Pursuit
from coordd.core.visible import visible
from coordd.services.following import lineal
from coordd.services.views.letters import is_letter
from coordd.services.views.objects import Stop, resolved
from coordd.services.waiting.absent import Absent, told_of
from coordd.services.waiting.sentences import by_host, standing, when

# A run in one of these states will still be launched, so obstacles to launching matter.
_TO_COME = ("pending", "retry", "received")


# More drained nodes than this in one explanation do not help.
DRAINED_MAX = 3


class Surroundings(NamedTuple):
    """The obstacles to any launch. ``*_error``: why it does not answer, or ""."""

    ledger_error: str = ""
    recovering_s: float = 0.0  # how long the ledger still grants nothing
    breaker_open: bool = False  # the ledger's breaker: no request is sent
    retry_in_s: float = 0.0
    bus_down: bool = False
    bus_error: str = ""

    def sentences(self) -> list[str]:
        """A sentence per trouble, the worst first."""
        said = []
        if self.ledger_error:
            said.append(f"Nothing new starts: the ledger does not answer ({self.ledger_error}).")
        if self.breaker_open:
            said.append(
                "The ledger's breaker is open, for it has failed again and again: "
                + (f"it is tried again in {self.retry_in_s:.1f} s." if self.retry_in_s else "it is being tried again.")
            )
        if self.recovering_s:
            said.append(recovering(self.recovering_s))
        if self.bus_down:
            reason = f" ({self.bus_error})" if self.bus_error else ""
            said.append(
                f"The bus is down{reason}: a hash of the run's id decides which node goes first. Runs still start."
            )
        return said


CALM = Surroundings()


class Holder(NamedTuple):
    """The node that holds an attempt, as this node knows it. Seconds; None: not known."""

    state: str = ""  # as in `node list`; "" if it was never heard
    heard_s: float | None = None  # seconds since it was last heard
    lost_s: float | None = None  # seconds since it is lost
    silent_s: float = 0.0  # how long it has certainly not renewed its lease
    lease_s: float = 0.0
    turn_in_s: float | None = None  # seconds until this node tries to take it over

    @property
    def gone(self) -> bool:
        """No node hears it."""
        return self.state not in ("alive", "suspect")


class Obstacles(NamedTuple):
    """The obstacles to the launch of one run, beside the surroundings."""

    no_file: bool = False  # this node has no job of that name
    stop: Stop | None = None  # the job is suspended
    drained: Mapping[str, Hold] = MappingProxyType({})  # nodes that take no runs, by hostname
    redefined: bool = False  # the job's definition here differs from the run's
    breaker: str = ""  # what its job's breaker does; "" if it is closed
    only_is: str = ""  # how the only node that may launch it is; "" if it is alive
    breaker_told: bool = False  # its job's breaker is open, and the sentence about the job says so
    clock: str = ""  # of a scheduled run without a row: why this node opens none


FREE = Obstacles()


def why_run(
    run: str,
    row: Row | None,
    attempts: list[AttemptRow],
    pursuit: Pursuit | None,
    election: Election | None,
    around: Surroundings = CALM,
    *,
    holder: Holder | None = None,
    absent: Absent | None = None,
    obstacles: Obstacles = FREE,
) -> str:
    """What happened to a run, and why."""
    told = _explained(run, row, attempts, pursuit, election, around, holder, absent, obstacles)
    names = [one.node for one in (row, *attempts) if one is not None and isinstance(one.node, str)]
    names += [pursuit.owner] if pursuit is not None else []
    return by_host(told, [*names, *(election.statements if election is not None else ())])


def _explained(
    run: str,
    row: Row | None,
    attempts: list[AttemptRow],
    pursuit: Pursuit | None,
    election: Election | None,
    around: Surroundings,
    holder: Holder | None,
    absent: Absent | None,
    obstacles: Obstacles,
) -> str:
    troubles = "".join(f" {sentence}" for sentence in around.sentences())
    if row is None:
        return _without_row(run, pursuit, election, around, absent or Absent(False), obstacles)
    fault = run_fault(row)
    if fault:
        return (
            f"Nothing can be done with {run}: {bad_run(run, fault)}. Other runs are not affected. Run "
            f"`coordctl run revoke {run}` to end it.{troubles}"
        )
    before = _before(attempts, row)
    if row.state in _TO_COME:
        before = troubles + _hindered(row, obstacles) + before
    elif row.reason == PREVENTED_BY:
        now = obstacles.breaker or ("" if obstacles.breaker_told else "It is closed now.")
        before = (f" {now}" if now else "") + before
    if is_letter(row):
        before += (
            f" It was given up. To try it once more: `coordctl deadletter replay {run}`. If nobody needs it: `coordctl "
            f"deadletter discard {run} --note TEXT`."
        )
    asked = (
        f" A {row.by.replace(' ', ' (', 1).replace(' by ', ') by ', 1)} has opened it."
        if is_backfill(row) and not is_rerun(row)
        else ""
    )
    return f"{run} {_state(row, pursuit, election, holder)}.{asked}{before}"


def _without_row(
    run: str,
    pursuit: Pursuit | None,
    election: Election | None,
    around: Surroundings,
    absent: Absent,
    obstacles: Obstacles,
) -> str:
    troubles = "".join(f" {sentence}" for sentence in around.sentences())
    if absent.accepted:
        kept = "It is kept on this node's disk, and offered to the ledger again every second."
        return f"{run} was triggered here, and the ledger does not have it yet. {kept}{troubles}"
    if around.ledger_error and absent.heard:
        return f"{run} {absent.heard}.{troubles}"
    if around.ledger_error and absent.holder:
        return f"{run} {absent.holder}.{troubles}"
    if around.ledger_error:
        return f"Nobody can launch {run} now.{troubles}"
    if around.recovering_s:
        return f"{run} is not in the ledger now.{troubles}"
    if pursuit is not None:
        told = f"{run} is not in the ledger yet: {pursuit.why or pursuit.phase}."
        text = " ".join(filter(None, (told, standing(election), absent.given_up)))
        return text + troubles + _held_back(job_of(run), obstacles)
    if absent.group:
        return absent.group + ("" if absent.group_ended else troubles + _held_back(job_of(run), obstacles))
    told = f"The ledger has no run {run!r}: {told_of(absent)}"
    undecided = absent.fire is None or not absent.fire.decision
    unsettled = absent.settled_to is None or (absent.fire_at or 0.0) > absent.settled_to
    open_still = absent.waits or (undecided and absent.is_fire_time and unsettled and not absent.held)
    return told + (_held_back(job_of(run), obstacles) if open_still else "")


def as_heard(known: Known, reason: str) -> str:
    """How a run ended, by the word of nodes. ``reason``: as the caller may see it."""
    outcome, on = known.outcome, f" on {host_of(known.outcome.node)}" if known.outcome.node else ""
    said = {
        "task-succeeded": f"succeeded{on}",
        "task-failed": f"failed{on} (attempt {outcome.attempt})",
        "task-revoked": "was revoked",
        "task-rejected": f"was not launched ({outcome.result or 'rejected'})",
    }[outcome.kind]
    by = f"{host_of(known.told_by)} told this node" if known.told_by else "this node has heard"
    why = f": {reason}" if reason else ""
    return visible(f"{said} at {when(outcome.at)}{why}; {by}, and the ledger knows more")


def as_held(attempt: int | None, pursuit: Pursuit | None) -> str:
    """Who has a run, without a word of the ledger. ``attempt``: the one whose runner lives on this node; None: none."""
    if attempt is not None:
        return (
            f"has a runner that lives on this node (attempt {attempt}). While the ledger does not answer, it goes on "
            'if its job says on_lost = "hold"; else it is ended before its lease ends, and tried again later'
        )
    if pursuit is not None and pursuit.phase == HELD_BY_OTHER and pursuit.owner:
        return f"was held by {pursuit.owner} (attempt {pursuit.attempt}) when this node last heard of it"
    return ""


def _held_back(job: str, by: Obstacles) -> str:
    """The holds that delay a run of the job."""
    said = f" {stopped(job, by.stop)}" if by.stop is not None else ""
    said += "".join(f" {told}" for told in (by.breaker, by.clock) if told)
    return said + "".join(f" {is_drained(name, by.drained[name])}" for name in list(by.drained)[:DRAINED_MAX])


def _hindered(row: Row, by: Obstacles) -> str:
    """The obstacles to the launch of a run: its job, and drained nodes."""
    said = _held_back(row.job, by)
    if by.no_file:
        said += (
            f" This node has no job {row.job!r}: where no node has its file nobody starts it; "
            f"`coordctl run revoke --job {row.job}` ends what waits."
        )
    only = unpinned(row.digest)[1]
    if only and row.state != "received":
        said += f" Only {only} may launch it, as `run trigger --node` asked"
        said += f"; {only} is {by.only_is}." if by.only_is else "."
    if by.redefined and row.state != "received":
        late = Policy.unpack(row.policy).start_within_s
        said += (
            f" The definition of {row.job} on this node differs from the registered one, and only a "
            f"node that still has that one may launch it. Otherwise it is missed, {late:.0f} s after it was due. "
            f"`coordctl run revoke {row.run}` ends it now."
        )
    return said


def _state(row: Row, pursuit: Pursuit | None, election: Election | None, holder: Holder | None) -> str:
    return {
        "pending": lambda: _pending(row, pursuit, election),
        "retry": lambda: _retry(row, pursuit),
        "received": lambda: (
            f"was granted to {row.node} at {when(row.received_at)} and waits at the gate for its time"
            f"{_held(row, holder)}"
        ),
        "started": lambda: (
            f"{'was' if holder and holder.gone else 'is'} running on {row.node} since {when(row.started_at)} "
            f"(attempt {row.attempt}){_held(row, holder)}"
        ),
        "success": lambda: (
            resolved(row)
            or f"succeeded on {row.node} at {when(row.ended_at)} after {row.ended_at - row.started_at:.1f} s"
        ),
        "failure": lambda: (
            resolved(row) or f"failed on {row.node or 'no node'} at {when(row.ended_at)}: {_reason(row)}"
        ),
        "revoked": lambda: f"was revoked at {when(row.ended_at)}: {row.reason}",
        "rejected": lambda: f"was not launched: {_reason(row)}",
        "missed": lambda: f"was not launched: {row.reason}",
        "lost": lambda: f"was lost: {row.reason}",
        "unknown": lambda: (
            f"may or may not have finished: {row.reason}. It is not started again before that is clear: "
            "if its driver runs on a cluster, `coordctl orphans` says what the cluster shows. Look at its output, then "
            f"run `coordctl run resolve {row.run} --as success|failed|relaunch`"
        ),
    }[row.state]()


def _reason(row: Row) -> str:
    return "the breaker of its job was open then" if row.reason == PREVENTED_BY else row.reason


def _held(row: Row, holder: Holder | None) -> str:
    """Known facts about the holder if it is not simply alive, and what happens next."""
    if holder is None or (not holder.gone and holder.silent_s < holder.lease_s / 2):
        return f", and is to be cancelled ({row.reason})" if row.cancel else ""
    name = host_of(row.node)
    if not holder.gone:
        parts = [f"{name} still sends messages, but it has not renewed its lease for {holder.silent_s:.0f} s"]
    elif holder.heard_s is None:
        parts = [f"this node has not heard {name} since it started"]
    else:
        parts = [f"{name} was last heard of {holder.heard_s:.0f} s ago and is {holder.state}"]
        if holder.lost_s is not None and holder.state == "lost":
            parts[0] += f" since {holder.lost_s:.0f} s"
    left_s = holder.lease_s - holder.silent_s
    if left_s > 0:
        parts.append(f"its lease ends in {left_s:.0f} s at the latest, unless it is renewed")
    else:
        parts.append("its lease has ended")
    then = "unknown, and held for a person" if _holds(row) else "lost, and tried again"
    if row.state == "received":
        then = "granted to another node: it was not started"
    elif row.cancel:
        then = "ended: it was cancelled"
    turn = f" (this node's turn is in {holder.turn_in_s:.0f} s)" if holder.turn_in_s and holder.turn_in_s > 0 else ""
    parts.append(f"after that it is {then}{turn}")
    return f"; {'; '.join(parts)}"


def _holds(row: Row) -> bool:
    return Policy.unpack(row.policy).on_lost == "hold"


def why_no_job(
    name: str,
    problem: str,
    rows: list[Row],
    others: list[str],
    like: str,
    around: Surroundings = CALM,
    last_word: str = "",
    source: str = "",
) -> str:
    """A job that this node does not have; it may still have runs. ``others``: nodes whose job files differ. ``source``:
    where its jobs come from, if not from files.
    """
    if problem:
        parts = [f"{name} does not run on this node: its file is wrong. {problem}", *filter(None, [source])]
    elif rows and rows[0].digest.startswith(EXEC_DIGEST):
        parts = [f"{name} is a job of `coordd exec` or coordd.single: it has no file, and runs where it is called."]
    else:
        meant = f" Did you mean {like}?" if like and not rows else ""
        nowhere = f". {source}" if source else ": there is no such file in its jobs directory."
        parts = [f"This node has no job {name!r}{nowhere}{meant}"]
    waiting = [row.run for row in rows if row.state in ("pending", "retry")]
    active = [row for row in rows if row.state in ("received", "started", "unknown")]
    parts += [
        by_host(f"{row.run} is {row.state} on {row.node or 'no node'} all the same.", [row.node]) for row in active[:5]
    ]
    if waiting:
        named = ", ".join(sorted(waiting)[:3]) + (", …" if len(waiting) > 3 else "")
        where = (
            f"Only {', '.join(others[:5])} may have its file: their jobs differ from those here."
            if others
            else ("No living node is known to have its file, so no node starts them.")
        )
        count = "1 run of it waits" if len(waiting) == 1 else f"{len(waiting)} runs of it wait"
        parts.append(
            f"{count} to be launched ({named}). {where} `coordctl run revoke --job {name}` ends them; "
            "otherwise the ledger ends them as missed, each after its start_within."
        )
    elif rows and not active:
        parts.append(f"Last: {last_word}" if last_word else f"Its last run: {rows[0].run} is {rows[0].state}.")
    return " ".join(parts + around.sentences())


def why_job(
    job: Job,
    stop: Stop | None,
    next_at: float | None,
    last: Row | None,
    last_word: str,
    node: Node,
    around: Surroundings = CALM,
    late: str = "",
    stale: str = "",
    breaker: str = "",
    awaits: str = "",
    checks: Sequence[str] = (),
    due: str = "",
    clock: str = "",
    source: str = "",
) -> str:
    """What delays a job's next run. ``awaits``: what waits for which parents; ``late``: why a success is overdue;
    ``due``: what became of fire times after the last run; ``clock``: why this node opens no scheduled run;
    ``source``: that another definition of it waits.
    """
    name = job.name
    parts = around.sentences()
    if late:
        parts.append(f"{name} is late: {late}.")
    if stop is not None:
        parts.append(stopped(name, stop))
    if breaker:
        parts.append(breaker)
    blocked = node.unfit or node.launch_problems.get(name, "")
    if blocked:
        parts.append(f"This node cannot start it: {blocked}.")
    parts += checks
    if node.aside:
        parts.append(f"This node leaves runs to other nodes for a while: {node.aside}.")
    if stale:
        parts.append(f"This node opens no scheduled run of it: {stale}.")
    parts += filter(None, [source, clock])
    if not set(job.tags) <= set(node.settings.tags):
        parts.append(f"This node may not run it: it needs the tags {', '.join(job.tags)}.")
    if node.state == "draining" and node.drains.own is not None:
        parts.append(is_drained(node.hostname, node.drains.own))
    elif node.state != "ready":
        parts.append(f"This node takes no runs: it is {node.state}.")
    if last is not None:
        parts.append(f"Last: {last_word}")
    elif not around.ledger_error:
        parts.append(f"{name} has never run.")
    if due:
        parts.append(due)
    absent = [parent for parent in job.after.jobs if parent not in node.jobs] if job.after is not None else []
    if absent:
        parts.append(f"This node has no job {', '.join(absent)}, after which it runs: another node must have it.")
    if awaits:
        parts.append(awaits)
    parts.append(_next_time(job, next_at, stop))
    return " ".join(parts)


def _next_time(job: Job, next_at: float | None, stop: Stop | None) -> str:
    """When it runs next, or what it waits for."""
    if not job.enabled:
        return "It is held: its job file says enabled = false, so nothing launches it."
    after = f" It also waits for its parents. {lineal.relation(job)}" if job.after is not None else ""
    if next_at is not None and stop is not None:
        return (
            f"Its next time is {iso(next_at)}: it starts only if the suspension ends before that, or at most "
            f"{job.start_within_s:.0f} s after it.{after}"
        )
    if next_at is not None:
        return f"Next: {iso(next_at)}.{after}"
    if job.after is not None:
        return lineal.relation(job)
    if job.schedule is None and job.triggers:
        kinds = ", ".join([one.kind for one in job.triggers])
        return f"It has no schedule: its triggers start it ({kinds}), or a person: `coordctl run trigger {job.name}`."
    if job.schedule is None:
        return "It has no schedule: it runs when somebody triggers it."
    return "Its schedule has no further fire time."


def stopped(job: str, stop: Stop) -> str:
    """Who suspended a job, or all jobs, and how that ends."""
    if stop.common:
        return f"All jobs are suspended{_held_by(stop.hold)}; `coordctl job resume --all` lets them run again."
    return f"{job} is suspended{_held_by(stop.hold)}; `coordctl job resume {job}` lets it run again."


def is_drained(name: str, hold: Hold) -> str:
    """Who drained a node, and how that ends."""
    return f"{name} is drained{_held_by(hold)}, and takes no new runs; `coordctl node resume {name}` ends that."


def _held_by(hold: Hold | None) -> str:
    """Who, since when, until when and why, as far as known."""
    if hold is None or not hold.by:
        return ""
    end = f" until {when(hold.until)}" if hold.until else ""
    note = f" ({hold.note})" if hold.note else ""
    return f"{end} by {hold.by}, uid {hold.uid}, since {when(hold.at)}{note}"


def recovering(left_s: float) -> str:
    """The sentence for a ledger in quarantine."""
    return (
        f"The ledger went back or was replaced: nothing new launches for {left_s:.0f} s, while the nodes put back what "
        "it forgot."
    )


def _pending(row: Row, pursuit: Pursuit | None, election: Election | None) -> str:
    late = Policy.unpack(row.policy).start_within_s
    text = f"waits to be launched (due {when(row.not_before)}, given up {late:.0f} s later)"
    if pursuit is not None and pursuit.why:
        text += f"; {pursuit.why}"
    stand = standing(election)
    return f"{text}. {stand}".rstrip(". ") if stand else text


def _retry(row: Row, pursuit: Pursuit | None) -> str:
    text = f"is due again as attempt {row.attempt} at {when(row.not_before)}, because: {row.reason}"
    if is_backfill(row) and not is_rerun(row) and not row.token:
        text = f"waits to be launched for the first time (attempt {row.attempt}, due {when(row.not_before)})"
    if pursuit is not None and pursuit.why:
        text += f"; {pursuit.why}"
    return text


def _before(attempts: list[AttemptRow], row: Row) -> str:
    """Earlier attempts, each with its end."""
    earlier = [a for a in attempts if not attempt_fault(a) and a.attempt < row.attempt]
    if not earlier:
        return ""
    told = "; ".join(
        f"attempt {a.attempt} on {a.node} was {a.state} ({a.reason or 'no reason recorded'})" for a in earlier
    )
    return f" Before that: {told}."
