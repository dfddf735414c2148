"""The control methods of `coordd exec`: a program of any user holds a run, and this daemon asks the ledger for it.

Names belong to users. Root and the daemon's user have the plain names. The name of any other user's run ends in the
user's uid, so nobody can take or end the run of another user. If a job file has the name, the run is a run of that job,
and the caller must be allowed to operate that job.

Such a run is like a triggered run, JOB#ID, with a definition of its own: a digest that no job file has. Other nodes see
the row and never launch the run. ``exec`` claims without an election: the first caller gets the run, and the others
repeat the claim until the run is over. Their daemon watches the holder's lease as every node does.
"""

from __future__ import annotations

import math
import os
from typing import Any

from coordd.core.jobs.job import EXEC_DIGEST, IDENT, Job, iso
from coordd.core.jobs.limits import claimed_policy
from coordd.core.jobs.schedule import last_fire, parse_instant
from coordd.core.ledger import words
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.limits.rule import LIMIT_RETRY_S
from coordd.core.ledger.requests import Cancel, Claim, Register
from coordd.core.ledger.rows import Row
from coordd.core.ledger.runner_requests import REPORTS, RESTORES, Gate, Registration, Renew, Report, Request, Restore
from coordd.core.ledger.words import ATTEMPT_MAX, RATE, RHO, SLOTS, AttemptNumber, Policy, Token
from coordd.core.names import NAME, NAME_RULE
from coordd.core.ready import Launch
from coordd.core.runs.lease_watch import LeaseWatch, watched_on
from coordd.core.visible import visible
from coordd.core.wire.events import Action
from coordd.errors import RefusedError, UnavailableError
from coordd.ports import Ledger
from coordd.services.control.callers import VIEWER, Caller, Method
from coordd.services.control.quota import RunShares
from coordd.services.control.rpc import take
from coordd.services.ledger import ONLY_LOOKS, boottime
from coordd.services.once.asked import (
    EVERY,
    ID,
    LEASE_MAX_S,
    LOCK,
    MARK,
    TICK,
    WAYS,
    Wanted,
    ask_again,
    every_s_of,
    held_of,
    named,
    nonce_of,
    number_of,
    one_of,
    policy_of,
    told,
)
from coordd.services.views.backfill_methods import BackfillMethods

# The clock of this machine may have reached a tick before the ledger's clock. If the two clocks differ by at most this
# (seconds), the caller waits for that tick. If they differ by more, the ledger's last tick counts.
AHEAD_MAX_S = 3600.0

# If no caller takes over a lost attempt within this time (seconds), it has no callers left and blocks nobody any more.
NOBODY_S = 30.0

# Maximum number of a job's open runs that are examined before a claim.
OTHERS_MAX = 20

# Maximum number of watched holders. If nobody has asked about a watch for this time (seconds), the node forgets it.
WATCHES_MAX = 10_000
WATCH_KEPT_S = 60.0

# When this node may not start anything, the caller asks again after this time (seconds).
UNFIT_AGAIN_S = 1.0

REASON_MAX = 1000

# Exit codes, and the negative numbers of signals, have smaller absolute values.
EXIT_CODE_END = 2**31


class ExecMethods(BackfillMethods):
    """The methods that `coordd exec` calls."""

    # The class that has all methods sets this.
    _watches: dict[str, LeaseWatch]  # run -> its holder, as this node has seen it
    _shares: RunShares

    def table(self) -> dict[str, Method]:
        """Every method, with the lowest role that may call it."""
        return {
            "exec": Method(self.exec_claim),
            "exec.gate": Method(self.exec_gate),
            "exec.renew": Method(self.exec_renew),
            "exec.report": Method(self.exec_report),
            "exec.restore": Method(self.exec_restore),
            **super().table(),
        }

    # ---- before the launch

    async def exec_claim(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Grant the run to the caller, or say why not: granted, finished, or a word and ``in_s``, when to ask again.

        Raises RefusedError, of kind ``not_permitted`` when the caller's names are all in use: that does not pass.
        """
        nonce, attempt = nonce_of(params), AttemptNumber(number_of(params, "attempt", ATTEMPT_MAX))
        wanted = await self._wanted(params, caller)
        unfit = self._unfit()
        if unfit:
            why = f"this node starts nothing now: {unfit}"
            return await self._over(wanted, attempt) or ask_again(wanted, words.LIMITED, attempt, UNFIT_AGAIN_S, why)
        ahead_s = wanted.at - self._ledger_wall()
        if ahead_s > 0:
            return ask_again(
                wanted, words.EARLY, attempt, ahead_s, f"its time is in {ahead_s:.3f} s by the ledger's clock"
            )
        if attempt == 0 and wanted.policy.overlap != "allow":
            blocked = await self._blocked(wanted, caller)
            if blocked:
                return ask_again(wanted, words.LIMITED, attempt, 0.0, blocked)
        stranger = _is_strangers(wanted.job, caller.uid)
        if stranger:
            self._has_share(wanted.job, caller, takeover=attempt > 0)
        first = await self._goes_first(wanted, caller)
        if first:
            return ask_again(wanted, words.LIMITED, attempt, LIMIT_RETRY_S, first)
        floor = self._driver.node.token_seen(wanted.job)
        claim = Claim(
            of=self._registration(wanted, caller),
            attempt=attempt,
            nonce=nonce,
            node=self._driver.node.full_hostname,
            lease_s=wanted.lease_s,
            watched=self._watched(wanted.run),
        )
        if stranger:  # before the answer, which may stay away
            self._shares.asked(caller.uid, wanted.job)
        answer = await self._change(claim)
        if stranger and (answer.word == words.GRANTED or answer.ended is not None):
            self._shares.wrote(caller.uid, boottime())
        if answer.word == words.GRANTED:
            return await self._granted(wanted, nonce, answer, floor, caller)
        return self._not_granted(wanted, attempt, answer)

    def _has_share(self, job: str, caller: Caller, *, takeover: bool = False) -> None:
        """Raises RefusedError: ``not_permitted`` is for good, ``try_later`` for a minute at the most."""
        for kind, full in (
            ("not_permitted", self._shares.no_name(caller.uid, job)),
            ("try_later", self._shares.full(caller.uid, boottime(), takeover=takeover)),
        ):
            if full:
                raise RefusedError(full, kind=kind, hint="a job file with an owner has no such limit")

    async def _granted(self, wanted: Wanted, nonce: str, answer: Answer, floor: int, caller: Caller) -> dict[str, Any]:
        node = self._driver.node
        self._watches.pop(wanted.run, None)
        if wanted.definition is not None and wanted.definition.pool:
            self._driver.feed(node.pursuits.caller_granted, wanted.run, wanted.definition.pool)
        launch = Launch(
            wanted.run,
            wanted.job,
            answer.attempt,
            answer.token,
            nonce,
            wanted.at or self._driver.now().wall,
            "{}",
            0.0,
            wanted.lease_s,
            digest=wanted.digest,
            policy=wanted.policy.pack(),
        )
        refused = self._driver.feed(node.exec_granted, launch, floor) or node.journal_failure
        if refused:
            await self._change(Report(grant=launch.grant, state=words.RETRY, reason=f"given back: {refused}"))
            return ask_again(wanted, words.LIMITED, AttemptNumber(answer.attempt + 1), UNFIT_AGAIN_S, refused)
        if wanted.definition is not None:
            self._audit(caller, "exec", wanted.run)
        settings, job = node.settings, wanted.definition
        return {
            **named(wanted, answer.attempt),
            "word": words.GRANTED,
            "token": answer.token,
            "left_s": min(answer.left_s, wanted.lease_s),
            "node": node.hostname,
            "fire_time": iso(launch.fire_at),
            "held": {"run": launch.run, "lease": launch.lease_s, "fire_at": launch.fire_at, "policy": launch.policy},
            "terms": {
                "lease_s": wanted.lease_s,
                "renew_interval_s": settings.renew_interval_s,
                "ledger_timeout_s": settings.ledger_timeout_s,
                "kill_grace_s": settings.kill_grace_s,
                "on_lost": wanted.policy.on_lost,
                "timeout_s": job.timeout_s if job is not None else 0.0,
            },
        }

    async def _over(self, wanted: Wanted, attempt: AttemptNumber) -> dict[str, Any]:
        """The answer about a run that has ended elsewhere, for a caller whom this node may not grant it; {} if it has
        not, or if this node must not believe its ledger yet."""
        if self._driver.node.braked:
            return {}
        row = await self._ledger.query(lambda ledger: ledger.run(wanted.run))
        if row is None or row.digest != wanted.digest or row.state not in words.TERMINAL:
            return {}
        return _finished(wanted, attempt, row.state, row.reason)

    def _not_granted(self, wanted: Wanted, attempt: AttemptNumber, answer: Answer) -> dict[str, Any]:
        word = answer.word
        if word == words.HELD:
            node, held = self._driver.node, answer.held
            self._watch(wanted.run, held.token, held.beat, wanted.lease_s)
            if answer.state == words.UNKNOWN:
                why = f"nobody knows its end on {answer.by}: coordctl run resolve {wanted.run}"
                return ask_again(wanted, words.HELD, attempt, math.inf, why, state=answer.state)
            away = " (this machine)" if answer.by == node.full_hostname else ""
            return ask_again(wanted, words.HELD, attempt, 0.0, f"{answer.by}{away} has it", state=answer.state)
        self._watches.pop(wanted.run, None)
        if word == words.LOST:
            return ask_again(wanted, words.LOST, answer.attempt, answer.in_s, "its last attempt was lost")
        if word in (words.EARLY, words.LIMITED, words.RECOVERING):
            return ask_again(wanted, word, attempt, answer.in_s, answer.by or f"the ledger says {word}")
        if word in (words.FINISHED, words.REVOKED):
            ended = answer.ended.reason if answer.ended is not None else "it is over"
            return _finished(wanted, attempt, answer.state or words.REVOKED, ended)
        if word == words.DIFFERS:
            raise RefusedError(
                f"{wanted.run} is another run there already",
                kind="conflict",
                hint="every machine must give the same options, and have the same job file of that name",
            )
        raise RefusedError(f"the ledger says {word}: {answer.by}", kind="failed")

    async def _blocked(self, wanted: Wanted, caller: Caller) -> str:
        """Why the run must wait for another run of its job; "" if the ledger must decide."""

        def read(ledger: Ledger) -> list[Row]:  # the job's other active runs, if this run is new
            known = ledger.run(wanted.run)
            if known is not None and known.state != words.PENDING:  # a row may only keep its place in a line
                return []
            return [
                row
                for state in (words.RETRY, words.STARTED, words.RECEIVED, words.UNKNOWN)
                for row in ledger.runs(job=wanted.job, state=state, limit=OTHERS_MAX)
            ]

        now, left = self._ledger_wall(), []
        for row in await self._ledger.query(read):
            if row.state == words.RETRY and row.digest.startswith(EXEC_DIGEST) and now > row.not_before + NOBODY_S:
                await self._change(Cancel(run=row.run, by=f"{caller.name}: nobody waits to take it over"))
            else:
                left.append(row)
        return f"{left[0].run} is {left[0].state} on {left[0].node or 'no node'}" if left and wanted.waits else ""

    async def _goes_first(self, wanted: Wanted, caller: Caller) -> str:
        """Which run is before this one in the line of its pool; "" if the ledger must decide.

        A caller who waits gets a row, from which all nodes know its place.
        """
        node, job = self._driver.node, wanted.definition
        if job is None or not job.pool:
            return ""
        of = self._registration(wanted, caller)
        action = Action(of.job, of.run, fire_at=of.fire_at, digest=of.digest)
        first = self._driver.feed(node.pursuits.before_caller, action, job.pool)
        if first and wanted.run not in node.pursuits.pursuits and wanted.patient:
            answer = await self._change(Register(of=of))
            if answer.state not in (words.PENDING, words.RETRY):
                return ""
            self._driver.feed(node.look_again)
        return f"pool {job.pool}: {first} goes first" if first else ""

    # ---- for the holder

    async def exec_gate(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """The final check before the command is executed."""
        held = self._held(params)
        answer = await self._ask_for(held, Gate(grant=held.grant))
        if answer.word == words.OK:
            self._driver.feed(self._driver.node.runner_started, held)
        return told(answer)

    async def exec_renew(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Extend the lease."""
        held = self._held(params)
        renew = Renew(grant=held.grant, lease_s=held.lease_s, launched=take(params, "launched", bool))
        return told(await self._ask_for(held, renew))

    async def exec_report(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Record the end of the attempt."""
        held = self._held(params)
        state, reason = one_of(params, "state", REPORTS), visible(take(params, "reason", str, ""))[:REASON_MAX]
        exit_code = take(params, "exit_code", int, None)
        if exit_code is not None and abs(exit_code) >= EXIT_CODE_END:
            raise RefusedError(f"exit_code: {exit_code} is out of range", kind="invalid_params")
        answer = await self._ask_for(held, Report(grant=held.grant, state=state, exit_code=exit_code, reason=reason))
        if answer.word == words.OK:
            self._driver.feed(self._driver.node.runner_ended, held, state, exit_code, reason, "", None)
        return told(answer)

    async def exec_restore(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Restore an attempt that the ledger has forgotten. Its holder is the witness."""
        held = self._held(params)
        stranger = _is_strangers(held.job, caller.uid)
        if stranger:  # it may have made the grant up; a row is written
            self._has_share(held.job, caller)
        elif not _has_plain_names(caller.uid):
            self._may_operate(caller, held.job)
        restore = Restore(
            of=Registration(
                *(held.run, held.job, held.digest, Policy.unpack(held.policy), held.fire_at),
                scheduled=False,
                by=caller.name,
                age_s=max(0.0, self._ledger_wall() - held.fire_at),
            ),
            grant=held.grant,
            node=self._driver.node.full_hostname,
            lease_s=held.lease_s,
            state=one_of(params, "state", RESTORES),
        )
        answer = await self._ask_for(held, restore)
        if stranger and answer.word == words.OK:
            self._shares.asked(caller.uid, held.job)
            self._shares.wrote(caller.uid, boottime())
        return told(answer)

    async def _ask_for(self, held: Launch, request: Request[Answer]) -> Answer:
        """Send a holder's request to the ledger. Token and nonce prove the grant, as they do everywhere.

        They do not prove that the run is one of `coordd exec`. Each program that a node launches finds its own token
        and nonce in its environment, and must not be able to end its own run in the ledger.
        """

        def ask(ledger: Ledger) -> Answer | None:
            row = ledger.run(held.run)
            return ledger.ask(request) if row is None or row.digest.startswith(EXEC_DIGEST) else None

        ONLY_LOOKS.set(False)  # a lease must not wait behind people's queries
        answer = await self._ledger.query(ask)
        if answer is None:
            raise RefusedError(f"{held.run} is not a run of coordd exec", kind="not_permitted")
        if answer.word == words.UNAVAILABLE:
            raise UnavailableError("the ledger does not answer")
        return answer

    # ---- the wanted run

    async def _wanted(self, params: dict[str, Any], caller: Caller) -> Wanted:
        """The run that the parameters describe. Raises RefusedError."""
        name, how = take(params, "job", str), one_of(params, "how", WAYS)
        what, ident = take(params, "what", str, ""), take(params, "ident", str, "")
        if not NAME.fullmatch(name):
            raise RefusedError(f"a name is {NAME_RULE}, found {name[:80]!r}", kind="bad_argument")
        definition = self._driver.node.jobs.get(name)
        if definition is None and name in self._job_problems():
            self._job(params)  # raises: the job file is bad, and may contain a rule that must not be ignored
        if definition is not None:
            self._may_operate(caller, name)
            self._may_start(definition)
        ONLY_LOOKS.set(False)  # a lease must not wait behind people's queries
        at = 0.0
        if how == ID:
            ident = what
        elif how in (TICK, EVERY) and not ident:
            timezone = take(params, "timezone", str, "") or (definition.timezone if definition else "") or "UTC"
            at = await self._tick(how, what, timezone, caller)
            ident = iso(at)
        elif how in (TICK, EVERY):
            try:
                at = parse_instant(ident, "UTC")
            except ValueError as exc:
                raise RefusedError(f"ident: {exc}", kind="bad_argument") from exc
        ident = ident if how == ID else ident or nonce_of(params)[:12]
        if not IDENT.fullmatch(ident):
            raise RefusedError(f"the id {ident[:40]!r} must be 1 to 128 of A-Z a-z 0-9 . _ : + -", kind="bad_argument")
        job = name if definition is not None or _has_plain_names(caller.uid) else f"{name}{MARK}{caller.uid}"
        policy, waits = policy_of(definition, how, what)
        if definition is not None:
            node = self._driver.node
            said = claimed_policy(definition, "{}", node.hostname, node.concurrency).limits
            policy.limits = ",".join(item for item in said.split(",") if item.startswith((SLOTS, RATE)))
        lease_s = self._lease_s(params, definition, most_s=self._lease_max_s(job))
        wait = bool(params.get("wait"))
        waits = waits or (how == LOCK and wait)
        return Wanted(job, ident, at, definition, policy, lease_s, waits, patient=wait or how != LOCK)

    async def _tick(self, how: str, what: str, timezone: str, caller: Caller) -> float:
        """The nominal time that the caller means. It is the last one by the ledger's clock, or the next one if this
        machine's clock has already reached the next one.
        """
        wall, ledger_wall = self._driver.now().wall, self._ledger_wall()
        try:
            if how == EVERY:
                every_s = every_s_of(what)
                ours, theirs = (math.floor(now / every_s) * every_s for now in (wall, ledger_wall))
            else:
                found = await self._lookups.do(
                    lambda _: [last_fire(what, timezone, now) for now in (wall, ledger_wall)],
                    looks=caller.role <= VIEWER,
                )
                ours, theirs = (0.0 if one is None else one for one in found)
        except ValueError as exc:
            raise RefusedError(f"{how}: {exc}", kind="bad_argument") from exc
        at = ours if theirs < ours <= ledger_wall + AHEAD_MAX_S else theirs
        if not at:
            raise RefusedError(f"{how}: {what!r} has not fired in the last 30 years", kind="bad_argument")
        return at

    def _lease_max_s(self, job: str) -> float:
        """The longest lease decides how long a ledger that went back grants nothing: a stranger may not choose it."""
        return self._driver.node.settings.lease_s if MARK in job else LEASE_MAX_S

    def _held(self, params: dict[str, Any]) -> Launch:
        held = held_of(params)
        return held._replace(lease_s=min(held.lease_s, self._lease_max_s(held.job)))

    def _lease_s(self, params: dict[str, Any], definition: Job | None, most_s: float) -> float:
        settings = self._driver.node.settings
        usual = definition.lease_s if definition is not None else settings.lease_s
        lease_s = float(take(params, "lease", float, 0.0)) or usual
        least = settings.renew_interval_s + 2 * settings.ledger_timeout_s + settings.kill_grace_s
        least /= 1 - 2 * RHO
        if not least <= lease_s <= most_s:
            made_of = "; the least is renew_interval + 2 x ledger_timeout + kill_grace, and 2 % more"
            span = f"{math.ceil(least * 10) / 10:g} to {most_s:.0f} s"
            text = f"lease: expected {span}, found {lease_s:.15g}{made_of if lease_s < least else ''}"
            raise RefusedError(text, kind="bad_argument")
        return lease_s

    def _registration(self, wanted: Wanted, caller: Caller) -> Registration:
        wall = self._driver.now().wall
        age_s = max(0.0, self._ledger_wall() - wanted.at) if wanted.at else 0.0
        of = (wanted.run, wanted.job, wanted.digest, wanted.policy, wanted.at or wall)
        return Registration(*of, scheduled=False, by=caller.name, age_s=age_s)

    # ---- this node

    def _unfit(self) -> str:
        node = self._driver.node
        if node.state == "ready" and not node.braked and not node.unfit:
            return ""
        return node.braked or node.unfit or f"it is {node.state}"

    def _watched(self, run: str) -> Any:
        watch = self._watches.get(run)
        return watch.watched(boottime()) if watch is not None else None

    def _watch(self, run: str, token: Token, beat: int, lease_s: float) -> None:
        now = boottime()
        if len(self._watches) >= WATCHES_MAX:
            self._watches = {of: one for of, one in self._watches.items() if now - one.last_at < WATCH_KEPT_S}
        known = self._watches.get(run)
        self._watches[run] = watched_on(known, token, beat, lease_s, self._driver.node.settings, now)


def _has_plain_names(uid: int) -> bool:
    """True for root and the daemon's user, also inside a run. So a job and a crontab of theirs share their locks."""
    return uid in (0, os.getuid())


def _is_strangers(job: str, uid: int) -> bool:
    """True if the name is the own one of a user without rights."""
    return job.endswith(f"{MARK}{uid}") and not _has_plain_names(uid)


def _finished(wanted: Wanted, attempt: AttemptNumber, state: str, why: str) -> dict[str, Any]:
    return {**named(wanted, attempt), "word": words.FINISHED, "state": state, "in_s": 0.0, "why": why}
