"""What the states of checks mean for jobs: which of them this node leaves to others, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coordd.core.checks.check import ABSTAIN, SUSPEND, Check
from coordd.core.checks.state import BAD
from coordd.core.jobs.job import HOOK, Job
from coordd.core.ledger.rows import OF_CHECK, OF_JOB, Hold

# Who suspends a job is, for a check: this and its key.
SUSPENDER = "check "

# Characters of what a check saw in a sentence.
SAW_MAX = 120


def told(check: Check, state: str, text: str) -> str:
    """A check that is bad, for people. What it saw is in quotes: it may be the output of a program."""
    saw = f" ({quoted(text[:SAW_MAX])})" if text else ""
    return f"check {check.key} is {state}{saw}"


def quoted(text: str) -> str:
    """What a check saw, in quotes: viewers are not shown what stands in them."""
    return '"' + text.replace('"', "'") + '"'


def suspender(key: str) -> str:
    """Who suspends a job for the check with this key, in the ledger."""
    return f"{SUSPENDER}{key}"


def forsaken(
    jobs: Mapping[str, Job], holds: Mapping[str, Hold], checks: Mapping[str, Check], hostname: str
) -> Iterable[tuple[str, str]]:
    """(job, key of a check) for each job that a check suspends and is to let go: the ledger tells nothing of the check,
    because no node that has it has looked for long; or this node looks for all, and there the check does not suspend
    the job any more. ``checks``: those of coordd.toml, by name.
    """
    for name, job in jobs.items():
        hold = holds.get(OF_JOB + name)
        if hold is not None and hold.by.startswith(SUSPENDER):
            key = hold.by.removeprefix(SUSPENDER)
            told_of = holds.get(OF_CHECK + key)
            if told_of is None or (told_of.by == hostname and not _suspends(job, key, checks)):
                yield name, key


def _suspends(job: Job, key: str, checks: Mapping[str, Check]) -> bool:
    return any(check.key == key and then == SUSPEND for check, then in uses(job, checks))


def uses(job: Job, checks: Mapping[str, Check]) -> Iterable[tuple[Check, str]]:
    """(check, what follows) for each check that concerns the job. ``checks``: those of coordd.toml, by name."""
    named = {use.check for use in job.uses}
    for check in job.checks:
        yield check, check.then
    for use in job.uses:
        if use.check in checks:
            yield checks[use.check], use.then
    for check in checks.values():
        if check.name not in named:
            yield check, check.then


def abstentions(
    jobs: Mapping[str, Job], checks: Mapping[str, Check], states: Mapping[str, str], tags: tuple[str, ...]
) -> dict[str, str]:
    """Job -> why this node does not take its runs. ``states``: by the check's key. Every node hears the reason in
    elections, and everybody may read it: what the check saw is not in it.
    """
    found = {}
    for name, job in jobs.items():
        if name.startswith(HOOK):  # hooks tell of bad checks
            continue
        for check, then in uses(job, checks):
            state = states.get(check.key, "")
            if then == ABSTAIN and state in BAD and check.is_for(tags):
                found[name] = told(check, state, "")
                break
    return found
