"""The control methods that show one run or run it again, and those about runs that were given up: `run.show`,
`run.rerun`, `deadletter.list`, …
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from coordd.config.hooks.hook import SINK
from coordd.config.hooks.publisher import PUBLISH
from coordd.core.jobs.job import EXEC_DIGEST, HOOK, Job, job_of, pinned, unpinned
from coordd.core.jobs.limits import claimed_policy
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Discard, Replay
from coordd.core.ledger.rerun.descendants import descendants
from coordd.core.ledger.rerun.plan import ITEMS_MAX, ROWS_MAX, TEXT_MAX, Item, text_of
from coordd.core.ledger.rows import AttemptRow, Row
from coordd.core.ledger.words import EXISTS, FAILURE, LOST, OK, RECOVERING, REVOKED, UNKNOWN, AttemptNumber
from coordd.errors import RefusedError
from coordd.ports import Ledger
from coordd.services.control.callers import VIEWER, Caller, Method
from coordd.services.control.core_methods import LIST_MAX, NOTE_MAX, VIEWER_LIST_MAX
from coordd.services.control.rpc import take
from coordd.services.following import groups, lineal
from coordd.services.guarding.held import ExecGuardMethods
from coordd.services.logs.files import find_log, tail_lines
from coordd.services.progress.service import Progress
from coordd.services.views import objects, timeline
from coordd.services.views.letters import dead_letters, is_letter, letter_id

# The only kind of dead letters in this version.
KIND = "run"

# What to do about an id that names no dead letter.
NONE = "coordctl deadletter list shows all dead letters"


class RunMethods(ExecGuardMethods):
    """One run as a whole, and the dead letters.

    A dead letter is a run that ended as failure or lost, until a person discards or replays it. It is read from the
    run's row, so nothing else is kept, and retention forgets it with its row.
    """

    _log_dir: str
    progress: Progress | None = None

    def table(self) -> dict[str, Method]:
        """Every method, with the lowest role that may call it."""
        return {
            "run.show": Method(self.run_show),
            "run.rerun": Method(self.run_rerun, changes=True),
            "deadletter.list": Method(self.deadletter_list),
            "deadletter.show": Method(self.deadletter_show),
            "deadletter.replay": Method(self.deadletter_replay, changes=True),
            "deadletter.discard": Method(self.deadletter_discard, changes=True),
            **super().table(),
        }

    async def _run_of(self, params: dict[str, Any]) -> str:
        """The run that is meant: by its id, or the newest run of a job."""
        named: str = take(params, "id", str)
        if job_of(named) != named:
            return named
        rows = await self._ledger.query(lambda ledger: ledger.runs(job=named, limit=1))
        if rows:
            return rows[0].run
        if named in self._driver.node.jobs:
            raise RefusedError(f"{named} has no run in the history", kind="unknown_run")
        near = self._like(named)
        hint = f"did you mean {near}?" if near else "coordctl run list shows all runs"
        raise RefusedError(f"no run and no job {named!r}", kind="unknown_run", hint=hint)

    async def run_show(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        run = await self._run_of(params)
        expand = groups.expanded(run, self._driver.node.jobs.get(job_of(run)))
        if expand is not None:
            members = await self._ledger.query(lambda ledger: groups.member_rows(ledger, run, expand))
            if members:
                return await self._group_shown(run, members, expand.count, caller)
        row = await self._row(run)
        attempts = await self._ledger.query(lambda ledger: ledger.attempts(run))
        shown = objects.run_view(row, redacted=caller.role <= VIEWER)
        shown["attempts"] = [objects.attempt_view(attempt) for attempt in attempts]
        shown["timeline"] = timeline.shown(timeline.of_run(row, attempts))
        shown["parents"], shown["rerun_of"] = lineal.parents(row), lineal.reruns(row)
        shown["children"] = await self._children(row)
        shown["group"], shown["members"] = groups.of_member(run), None
        shown["progress"] = shown["no_progress"] = None
        if self.progress is not None:
            shown["progress"], shown["no_progress"] = await self.progress.of(run, row.node, row.state)
        if caller.role > VIEWER:  # they may read logs
            failed = self._newest_failed(attempts)
            shown["log_tail"] = [] if failed is None else await trio.to_thread.run_sync(self._log_tail, run, failed)
            shown["log_tail_of"] = failed if shown["log_tail"] else None
            if shown["log_tail"] and caller.asked is not None:
                caller.asked.looked = True
        return shown

    async def _group_shown(self, run: str, members: Sequence[Row], total: int, caller: Caller) -> dict[str, Any]:
        first = objects.run_view(members[0], redacted=caller.role <= VIEWER)
        shown = groups.view(run, members, first, total)
        shown["parents"], shown["rerun_of"] = lineal.parents(members[0]), lineal.reruns(members[0])
        shown["children"] = await self._children(members[0])
        shown["progress"] = shown["no_progress"] = None
        return shown

    async def _children(self, row: Row) -> list[dict[str, Any]]:
        named = lineal.children(row, self._driver.node.jobs)

        def read(ledger: Ledger) -> dict[str, Row]:
            found = {run: ledger.run(run) for run in named}
            return {run: child for run, child in found.items() if child is not None}

        rows = await self._ledger.query(read) if named else {}
        plans = lineal.to_rerun(self._driver.node.drains.holds)
        marks = {run: f"{root}/{hold.version}" for run, (root, hold, _) in plans.items()}
        again = {run for run, mark in marks.items() if run not in rows or lineal.reruns(rows[run]) != mark}
        return lineal.shown(named, rows, again)

    def _newest_failed(self, attempts: Sequence[AttemptRow]) -> int | None:
        return max(
            (row.attempt for row in attempts if row.state in (FAILURE, LOST) and isinstance(row.attempt, int)),
            default=None,
        )

    def _log_tail(self, run: str, attempt: int) -> list[str]:
        """The last lines of an attempt's log, if it is on this node."""
        path = find_log(self._log_dir, run, attempt, earlier=False)
        return tail_lines(path) if path else []

    async def _row(self, run: str) -> Row:
        row = await self._ledger.query(lambda ledger: ledger.run(run))
        if row is None and run in self._driver.node.triggers.requests:
            raise RefusedError(
                f"{run} was triggered here, and the ledger does not have it yet",
                kind="unknown_run",
                hint=f"coordctl why {run}",
            )
        if row is None:
            raise RefusedError(f"no run {run!r}", kind="unknown_run", hint="coordctl run list shows all runs")
        return row

    # ---- dead letters

    async def deadletter_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        job = take(params, "job", str, "")
        most = VIEWER_LIST_MAX if caller.role <= VIEWER else LIST_MAX
        limit = min(max(1, take(params, "limit", int, 100)), most)

        def read(ledger: Ledger) -> list[dict[str, Any]]:  # the thread also formats the rows
            return [letter_view(row) for row in dead_letters(ledger, limit, job, searched=most)]

        return await self._ledger.query(read)

    async def deadletter_show(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        row, attempt = await self._letter(params)
        shown = await self.run_show({"id": row.run}, caller)
        return {**letter_view(row, attempt), "dead": is_letter(row) and row.attempt == attempt, "shown": shown}

    async def deadletter_replay(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        named = take(params, "id", str)
        self._may_operate(caller, job_of(named))
        row, attempt = await self._letter(params)
        answer, follow = await self._replay(row, attempt, params, caller)
        if answer.word != OK:
            raise _no_letter(row.run, answer.state)
        self._audit(caller, "deadletter.replay", letter_id(row.run, attempt) + _then(follow))
        told = {"id": letter_id(row.run, attempt), "run": row.run, "attempt": answer.attempt, "state": answer.state}
        return {**told, "children": [item.runs.run for item in follow]}

    async def run_rerun(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """The next attempt of a run that has ended, whichever way, with its id and its arguments."""
        run, said = take(params, "id", str), self._asked(params)
        self._may_operate(caller, job_of(run))
        expand = groups.expanded(run, self._driver.node.jobs.get(job_of(run)))
        if expand is not None:
            raise RefusedError(
                f"{run} is a group of {expand.count} runs: expected one of them",
                kind="unknown_run",
                hint=f"coordctl run rerun '{run}~0'",
            )
        row = await self._row(run)
        answer, follow = await self._replay(row, row.attempt, params, caller, whole=True)
        if answer.word != OK:
            raise _not_over(row, answer.state)
        repeats = letter_id(run, row.attempt)
        self._audit(caller, "run.rerun", said.text(repeats) + _then(follow))
        told = {"id": run, "attempt": answer.attempt, "state": answer.state, "rerun_of": repeats}
        return {**told, "children": [item.runs.run for item in follow]}

    async def _replay(
        self, row: Row, attempt: AttemptNumber, params: dict[str, Any], caller: Caller, *, whole: bool = False
    ) -> tuple[Answer, list[Item]]:
        """Ask the ledger for the run's next attempt after this one: its answer, and the runs that follow.

        Raises RefusedError if there is a later attempt, or the ledger can't tell now.
        """
        job = self._replayed_by(row)
        follow = self._following(row, caller) if take(params, "with_children", bool, False) else []
        replay = Replay(
            run=row.run,
            attempt=attempt,
            digest=pinned(job.digest, unpinned(row.digest)[1]),
            policy=claimed_policy(job, row.args, self._driver.node.hostname).pack(),
            by=caller.name,
            children=text_of(follow),
            whole=whole,
        )
        answer = await self._change(replay)
        if answer.word == RECOVERING:
            raise RefusedError(f"the ledger is recovering, for {answer.left_s:.0f} s", kind="try_later")
        if answer.word == EXISTS:
            raise _replayed_before(row.run, attempt, answer)
        if answer.word == OK:
            self._driver.feed(self._driver.node.look_again)
        return answer, follow

    def _following(self, row: Row, caller: Caller) -> list[Item]:
        """The runs that follow it. Raises RefusedError if the caller may not run all of them, or there are too many."""
        node = self._driver.node
        follow = descendants(
            node.jobs, row.job, row.run, row.fire_at, scheduled=bool(row.scheduled), identity_from=node.identity_from
        )
        for name in sorted({job_of(item.runs.run) for item in follow}):
            self._may_operate(caller, name)
        text = text_of(follow)
        rows = sum(max(1, runs.count) for item in follow for of_job in ((item.runs,), *item.parents) for runs in of_job)
        if len(follow) > ITEMS_MAX or rows > ROWS_MAX or len(text) > TEXT_MAX:
            raise RefusedError(
                f"{len(follow)} runs follow {row.run}, with {rows} rows: expected at most {ITEMS_MAX} and {ROWS_MAX}",
                kind="too_many",
                hint="run it again without its children, then the children that need it",
            )
        return follow

    async def deadletter_discard(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        self._may_operate(caller, job_of(take(params, "id", str)))
        note = self._discard_note(params)
        row, attempt = await self._letter(params)
        answer = await self._change(Discard(run=row.run, attempt=attempt, by=caller.name, note=note))
        if answer.word != OK:
            raise _no_letter(row.run, answer.state)
        self._audit(caller, "deadletter.discard", f"{letter_id(row.run, attempt)}: {note}")
        return {"id": letter_id(row.run, attempt), "run": row.run, "state": answer.state, "discarded": True}

    def _discard_note(self, params: dict[str, Any]) -> str:
        note: str = take(params, "note", str).strip()
        if not note or len(note) > NOTE_MAX:
            raise RefusedError(
                f"a note of {len(note)} characters",
                kind="invalid_params",
                hint=f"say in 1 to {NOTE_MAX} characters why nobody needs it, for later readers",
            )
        return note

    async def _letter(self, params: dict[str, Any]) -> tuple[Row, AttemptNumber]:
        """The run that is meant, and the attempt with which it was given up: by the letter's id, or the run's."""
        run, slash, number = take(params, "id", str).rpartition("/")
        if not slash:
            run, number = number, ""
        row = await self._row(run)
        if number and not (number.isascii() and number.isdecimal() and len(number) < 10):
            raise RefusedError(f"{number[:40]!r} is not the number of an attempt", kind="unknown_run", hint=NONE)
        if number:
            return row, AttemptNumber(int(number))
        over = row.state in (FAILURE, LOST) or not row.attempt  # otherwise the letter that was replayed is meant
        return row, row.attempt if over else AttemptNumber(row.attempt - 1)

    def _replayed_by(self, row: Row) -> Job:
        """The definition that a replay executes: the present one. Raises RefusedError if this node has none that
        counts.
        """
        if row.digest.startswith(EXEC_DIGEST):
            raise RefusedError(
                f"{row.run} is a run of `coordd exec`",
                kind="not_available",
                hint="call `coordd exec` again: with another id, if it has --id",
            )
        job = self._job({"job": row.job})
        self._may_start(job)
        stale = self._driver.node.rulebook.definitions.stale.get(job.name)
        if stale:
            raise RefusedError(
                f"another definition of {job.name} counts: {stale}",
                kind="stale",
                hint="ask another node, or coordctl reload",
            )
        return job


def letter_view(row: Row, attempt: int | None = None) -> dict[str, Any]:
    """One dead letter, as in `deadletter.list`."""
    return {
        "id": letter_id(row.run, row.attempt if attempt is None else attempt),
        "kind": _kind(row.job),
        "at": objects.instant(row.ended_at),
        "reason": row.reason or None,
        "attempts": row.attempt + 1,
        "job": row.job,
        "run": row.run,
        "state": row.state,
        "exit_code": row.exit_code,
        "node": row.node or None,
    }


def _kind(job: str) -> str:
    if job.startswith(HOOK + SINK):
        return "sink"
    if job.startswith(PUBLISH):
        return "message"
    return "hook" if job.startswith(HOOK) else KIND


def _then(follow: Sequence[Item]) -> str:
    """The runs that run once more after it, for the audit."""
    return f", then {lineal.named(follow)}" if follow else ""


def _not_over(row: Row, state: str) -> RefusedError:
    """The refusal to run a run once more."""
    if state == REVOKED:
        hint = f"coordctl run trigger {row.job} starts another run; job backfill --redo all takes fire times up again"
        return RefusedError(f"{row.run} is revoked: a person has forbidden it", kind="finished", hint=hint)
    hint = f"coordctl run resolve '{row.run}' --as relaunch" if state == UNKNOWN else f"coordctl why '{row.run}'"
    return RefusedError(f"{row.run} is {state}: it has not ended", kind="finished", hint=hint)


def _replayed_before(run: str, attempt: AttemptNumber, answer: Answer) -> RefusedError:
    """The refusal to replay an attempt after which there is another one."""
    _, replayed, who = answer.by.rpartition("replayed by ")
    letter, next_one = letter_id(run, attempt), f"attempt {attempt + 1}"
    if replayed:
        why = f"was replayed before by {who.removesuffix(' (run rerun)') or 'somebody'}, as {next_one}"
    else:
        why = f"is not a dead letter: {next_one} was its retry"
    hint = f"coordctl run show '{run}'"
    return RefusedError(f"{letter} {why}; {run} is {answer.state} now", kind="finished", hint=hint)


def _no_letter(run: str, state: str) -> RefusedError:
    """The refusal for a run that is not a dead letter (any more)."""
    why = "it was discarded, or a person cancelled it" if state in (FAILURE, LOST) else f"it is {state}"
    return RefusedError(f"{run} is not a dead letter: {why}", kind="finished", hint=NONE)
