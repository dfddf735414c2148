"""Why an arrival has no run: sentences for people, from the node that polls its trigger."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from coordd.core.jobs.trigger import FILE, Trigger
from coordd.core.triggers.duplicates import run_of_arrival
from coordd.core.visible import visible
from coordd.services.ledger import boottime
from coordd.services.triggering.registering import breaker_lets, may_start
from coordd.services.triggering.service import Watched

# Triggers that `why` of a job speaks of.
SHOWN_MAX = 5


def matches(trigger: Trigger, path: str) -> bool:
    """True if a file of that path may be an arrival of this trigger. A path in HDFS has no address."""
    if trigger.kind != FILE:
        return False
    pattern = trigger.path
    if "://" in pattern:
        pattern = "/" + pattern.partition("?")[0].partition("://")[2].partition("/")[2]
    names, parts = pattern.split("/"), path.split("/")
    return len(names) == len(parts) and all(
        fnmatchcase(part, name) and (part[:1] != "." or name[:1] == ".")
        for name, part in zip(names, parts, strict=True)
    )


def explained(watched: Watched, path: str) -> dict[str, str]:
    """What this node, which polls, knows of a file: a sentence, and its run or ""."""
    trigger, taker = watched.trigger, watched.taker
    of = f"{watched.job}/{trigger.name}"
    shown = visible(path)[:300]

    def told(sentence: str, run: str = "") -> dict[str, str]:
        return {"sentence": f"{shown}: {sentence}", "run": run}

    if any(one.values.get("path") == path for one in taker.waiting):
        return told(f"it waits at the trigger {of}: {_wait(watched)}.")
    for what, why in taker.refused.items():
        if what == path:
            return told(f"the trigger {of} refused it: {visible(why)}.")
    found = watched.source.seen(path)
    job = watched.driver.node.jobs.get(watched.job)
    if found is not None and not found.settled:
        since = max(0.0, boottime() - found.since)
        return told(
            f"the trigger {of} has seen it, and waits until it is complete: it must be the same for"
            f" {trigger.settle_s:g} s, and was so for {since:.1f} s."
        )
    if found is not None and job is not None and taker.has_taken(found.file.key):
        run = run_of_arrival(job, trigger, found.file.arrival())
        return told(f"the trigger {of} took it; its run is {run}.", run)
    if watched.problem:
        return told(f"the last look of the trigger {of} failed: {watched.problem}.")
    return told(f"the last look of the trigger {of} did not find it, or has not registered it yet.")


def _wait(watched: Watched) -> str:
    job = watched.driver.node.jobs.get(watched.job)
    if job is None:
        return "this node does not have the job any more"
    state = may_start(watched.driver, job)
    if state:
        return f"the job is {state}"
    if breaker_lets(watched.driver, job) is not None:
        return "one run at a time tries whether the job works again (coordctl breaker list)"
    return f"the job has max_open ({watched.trigger.max_open}) open runs, or the ledger does not record new ones"


def of_job(views: list[dict[str, Any]]) -> str:
    """Sentences about the triggers of a job, as `trigger.list` shows them; "" without triggers."""
    said = []
    for view in views[:SHOWN_MAX]:
        parts = [f"{view['state']} by {view['poller']}" if view.get("poller") else str(view["state"])]
        if view.get("waiting"):
            parts.append(f"{view['waiting']} arrivals wait")
        if view.get("dead"):
            parts.append(f"{view['dead']} messages are dead")
        if view.get("problem"):
            parts.append(f"problem: {view['problem']}")
        said.append(f"Trigger {view['name']} ({view['kind']}): {', '.join(parts)}.")
    return " ".join(said)
