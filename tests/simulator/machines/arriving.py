"""Worlds whose jobs have triggers: a directory, a queue, a stream, and jobs that know triggers by a key (`dedupe`).

All of it is drawn from a random stream of its own, and the jobs are added to those that a world has anyway.
"""

from __future__ import annotations

import random
from typing import Any

from coordd.core.jobs.job import Command, Dedupe, Job, Retry
from coordd.core.jobs.trigger import AMQP, FILE, KEY_ID, REDIS, Trigger
from simulator import configuration
from simulator.item import Item
from simulator.terms import CHAOS_S, LEASE, SCHEDULES_END_S

# The jobs: of files, which stay; of messages of a queue; of messages of a stream, in which a value is one run for ever;
# of requests of people, in which a value is one run in a period.
DROP, QUEUE, ONCE, DAILY = "drop", "queue", "once", "daily"
JOBS = (DROP, QUEUE, ONCE, DAILY)

# What happens: something arrives; a person asks for a run of ONCE or DAILY; a machine reaches no source for a while.
ARRIVES, ASK, AWAY = "arrives", "ask", "source_away"
KINDS = (ARRIVES, ASK, AWAY)

# Terms of the elections of pollers (seconds); the last is the real one.
TERM = "coordd.core.triggers.polling.TERM_S"
TERMS_S = (5.0, 5.0, 20.0, 60.0)

# How many arrive at each source, until when (seconds), and how many of them come in one burst.
MANY = (6, 12, 25)
UNTIL_S = SCHEDULES_END_S
BURST = (1, 1, 4, 8)

# A file is written in two parts with this probability, with a pause between these (seconds).
PARTS, PART_S = 0.3, (0.1, 6.0)

# A message can start nothing, or is sent twice, with these probabilities. The values of the others.
DEAD, TWICE = 0.05, 0.15
VALUES = "abcdefgh"

# How many requests of people, sources that are away, and other acts; and how long (seconds) the last two are.
ASKS, AWAYS, ACTS = (6, 12, 20), (0, 1, 3), (0, 2, 4)
AWAY_S, ACT_S = (1.0, 15.0), (2.0, 12.0)

# What people edit in the files of these jobs.
EDITED = ("args", "attempts", "lease", "start_within")


def jobs(seed: int) -> dict[str, Job]:
    """The jobs with triggers, and those with `dedupe`."""
    rng = random.Random(f"triggers of {seed}")

    def trigger(kind: str, name: str, **more: Any) -> Trigger:
        every_s, most = rng.choice((1.0, 2.0, 4.0)), rng.choice((1, 3, 10))
        return Trigger(kind=kind, name=name, every_s=every_s, max_open=most, **more)

    def job(name: str, *triggers: Trigger, **more: Any) -> Job:
        within_s = rng.choice((8.0, 20.0))
        params = {"value": "", "size": ""} if name == DROP else {"value": ""}
        return Job(
            name=name,
            digest=f"triggers-{name}",
            launch=Command(argv=("/bin/true",)),
            lease_s=LEASE,
            overlap="allow",
            start_within_s=within_s,
            retry=Retry(relaunches=50),
            params=params,
            triggers=triggers,
            **more,
        )

    of_file = {"value": "{trigger.path}", "size": "{trigger.size}"}
    of_queue = trigger(AMQP, QUEUE, queue=QUEUE, key=KEY_ID, args={"value": "{trigger.key}"})
    of_stream = trigger(REDIS, ONCE, stream=ONCE, key=KEY_ID, args={"value": "{trigger.body.value}"})
    made = [
        job(DROP, trigger(FILE, DROP, path="/in/*", settle_s=rng.choice((0.0, 1.0, 3.0)), args=of_file)),
        job(QUEUE, of_queue),
        job(ONCE, of_stream, dedupe=Dedupe("{value}")),
        job(DAILY, dedupe=Dedupe("{value}", period_s=rng.choice((10.0, 15.0, 30.0)))),
    ]
    return {one.name: one for one in made}


def limits(seed: int) -> dict[str, float]:
    """The terms of that world."""
    return {TERM: random.Random(f"terms of {seed}").choice(TERMS_S)}


def items(seed: int) -> list[Item]:
    """What arrives, what people ask for and change, and which machine reaches no source."""
    rng = random.Random(f"arrivals of {seed}")
    made = [item for job in (DROP, QUEUE, ONCE) for item in _arrivals(rng, job)]
    for _ in range(rng.choice(ASKS)):
        what = f"{rng.choice((ONCE, DAILY, DAILY))}/{rng.choice(VALUES[:4])}"
        made.append(Item(rng.uniform(3.0, UNTIL_S), ASK, rng.random(), 0.0, what))
    made += [
        Item(rng.uniform(3.0, CHAOS_S - AWAY_S[1]), AWAY, rng.random(), rng.uniform(*AWAY_S))
        for _ in range(rng.choice(AWAYS))
    ]
    for _ in range(rng.choice(ACTS)):
        kind, job = rng.choice(("edit", "edit", "remove", "suspend")), rng.choice(JOBS)
        who = (configuration.NAMES.index(rng.choice(EDITED)) + 0.5) / len(configuration.NAMES)
        at = rng.uniform(3.0, configuration.EDITED_BY_S)
        made.append(Item(at, kind, who if kind == "edit" else rng.random(), rng.uniform(*ACT_S), job))
    return made


def _arrivals(rng: random.Random, job: str) -> list[Item]:
    made: list[Item] = []
    left = rng.choice(MANY)
    while left > 0:
        at = rng.uniform(1.0, UNTIL_S)
        for _ in range(min(left, rng.choice(BURST))):
            number = len(made)
            what, amount = f"{job}/{number}", 0.0
            if job == DROP:
                amount = rng.uniform(*PART_S) if rng.random() < PARTS else 0.0
            elif rng.random() >= DEAD:
                what += f"/{rng.choice(VALUES) if job == ONCE else 'v'}"
            elif job == QUEUE:
                what = f"{job}/"  # without an id
            made.append(Item(at + rng.uniform(0.0, 0.5), ARRIVES, rng.random(), amount, what))
            if job == QUEUE and rng.random() < TWICE:
                made.append(made[-1]._replace(at=at + rng.uniform(0.0, 8.0)))
            left -= 1
    return made
