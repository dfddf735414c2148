"""What a caller of `coordd exec` asks for: the run, its policy, the attempt that a holder means; and the answers."""

from __future__ import annotations

import hashlib
import re
from typing import Any, NamedTuple

from coordd.core.jobs.job import EXEC_DIGEST, IDENT, Job, triggered_run
from coordd.core.jobs.schedule import parse_duration
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.sound import policy_fault
from coordd.core.ledger.words import ATTEMPT_MAX, DURATION_MAX_S, INSTANT_MAX, TOKEN_MAX, AttemptNumber, Policy, Token
from coordd.core.names import NAME
from coordd.core.ready import Launch
from coordd.errors import RefusedError
from coordd.services.control.rpc import take

NONCE = re.compile(r"[0-9a-f]{32}", re.ASCII)
MARK = "~"  # in the names of other users than root and the daemon's; no name of a job file contains it
HELD_JOB = re.compile(NAME.pattern + rf"({MARK}\d{{1,10}})?", re.ASCII)

# The longest lease. If a machine dies, the name stays blocked for the length of the lease.
LEASE_MAX_S = 86_400.0

LOCK, TICK, EVERY, ID = "lock", "tick", "every", "id"
WAYS = (LOCK, TICK, EVERY, ID)


class Wanted(NamedTuple):
    """The run that a caller wants."""

    job: str  # as in the ledger: with the uid, unless the caller may use the plain name
    ident: str
    at: float  # its nominal time (Unix seconds); 0.0 without one
    definition: Job | None  # the job file of that name
    policy: Policy
    lease_s: float
    waits: bool  # whether it waits for other runs of the job; otherwise the overlap policy refuses it
    patient: bool  # whether the caller asks again until its turn

    @property
    def run(self) -> str:
        return triggered_run(self.job, self.ident)

    @property
    def digest(self) -> str:
        return digest_of(self.policy.pack())


def held_of(params: dict[str, Any]) -> Launch:
    """The attempt that a holder means. It does not depend on job files, because these may
    have changed since the claim.
    """
    run, policy = take(params, "run", str), take(params, "policy", str)
    job, mark, ident = run.partition("#")
    if not mark or not HELD_JOB.fullmatch(job) or not IDENT.fullmatch(ident) or policy_fault(policy):
        raise RefusedError(f"{run[:200]!r} is not a run of coordd exec", kind="invalid_params")
    lease_s, fire_at = (float(take(params, name, float)) for name in ("lease", "fire_at"))
    if not (0.0 < lease_s <= LEASE_MAX_S and 0.0 <= fire_at <= INSTANT_MAX):
        raise RefusedError("the lease or the time is out of range", kind="invalid_params")
    return Launch(
        run,
        job,
        AttemptNumber(number_of(params, "attempt", ATTEMPT_MAX)),
        Token(number_of(params, "token", TOKEN_MAX)),
        nonce_of(params),
        fire_at,
        "{}",
        0.0,
        lease_s,
        digest=digest_of(policy),
        policy=policy,
    )


def digest_of(policy: str) -> str:
    """It does not depend on the limits: a rate names the node, and a strategy says another number each time."""
    plain = Policy.unpack(policy)
    plain.limits = ""
    policy = plain.pack()
    return EXEC_DIGEST + hashlib.sha256(policy.encode()).hexdigest()[:16]


def policy_of(definition: Job | None, how: str, what: str) -> tuple[Policy, bool]:
    """The policy of the run, and whether it waits for other runs of its job.

    Only the caller's own exit code says how the run ended, so a failure is never retried. A lost lock is free. A lost
    run with a key is taken over by a caller who waits for it.
    """
    usual = definition.policy() if definition is not None else Policy(overlap="allow" if how == ID else "forbid")
    if definition is None and how == EVERY:  # dated by the begin of its period, in which it may be called at any time
        usual.start_within_s = min(DURATION_MAX_S, max(usual.start_within_s, every_s_of(what)))
    waits = usual.overlap == "queue"  # if the caller is killed, a place in the ledger's queue would stay
    policy = Policy(
        on_lost=usual.on_lost,
        overlap="forbid" if waits else usual.overlap,
        attempts=1,
        relaunches=0 if how == LOCK else usual.relaunches,
        start_within_s=usual.start_within_s,
    )
    return policy, waits


def every_s_of(what: str) -> float:
    try:
        every_s = parse_duration(what)
    except ValueError as exc:
        raise RefusedError(f"every: {exc}", kind="bad_argument") from exc
    if every_s < 1.0 or every_s % 1.0:  # the id of the run has whole seconds
        raise RefusedError(f"every: expected whole seconds, at least 1s; found {what!r}", kind="bad_argument")
    return every_s


def named(wanted: Wanted, attempt: AttemptNumber) -> dict[str, Any]:
    return {"run": wanted.run, "job": wanted.job, "ident": wanted.ident, "attempt": attempt}


def ask_again(
    wanted: Wanted, word: str, attempt: AttemptNumber, in_s: float, why: str, state: str = ""
) -> dict[str, Any]:
    """Tell the caller to ask again after ``in_s``."""
    in_s = min(in_s, DURATION_MAX_S)
    return {**named(wanted, attempt), "word": word, "in_s": in_s, "why": why, "state": state}


def told(answer: Answer) -> dict[str, Any]:
    """The ledger's answer in the form that a holder gets."""
    return {"word": answer.word, "left_s": answer.left_s, "in_s": answer.in_s, "state": answer.state}


def nonce_of(params: dict[str, Any]) -> str:
    nonce: str = take(params, "nonce", str)
    if not NONCE.fullmatch(nonce):
        raise RefusedError("a nonce is 32 hexadecimal digits", kind="invalid_params")
    return nonce


def number_of(params: dict[str, Any], name: str, most: int) -> int:
    number: int = take(params, name, int)
    if not 0 <= number <= most:
        raise RefusedError(f"{name} must be 0 to {most}, found {number}", kind="invalid_params")
    return number


def one_of(params: dict[str, Any], name: str, known: tuple[str, ...]) -> str:
    word: str = take(params, name, str)
    if word not in known:
        raise RefusedError(f"{name} must be one of {', '.join(known)}, found {word[:40]!r}", kind="invalid_params")
    return word
