"""`make syscalls`: an error and a crash at every system call of a launch, an end and a takeover.

There are two set-ups: with a cgroup for each attempt, and without cgroups.

Each worker has its own daemon and its own process namespace. So a walk over /proc is short and always the same. A plan
that fails is printed as one line. Run the plan again with --plan.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

from syscalls.faults import FAIL, KILL, Plan
from syscalls.trial import LIFES, Outcome, Trial, trial

# The roles that make calls in a run that ends by itself, and in one whose runner and watcher are killed.
ROLES = {"ends": ("daemon", "warm", "watcher", "runner", "program"), "waits": ("daemon", "burial")}

# A line of progress after this many cases.
PROGRESS = 100

# The number of calls differs a little between runs. So the plans also try this many calls beyond the highest count.
BEYOND = 5
DRY_RUNS = 2

# A lasting error: this many calls of the same kind fail. If a daemon could start nothing for longer than that, it would
# use up the run's attempts. That is correct behaviour, but the run would have another end.
LASTING = {"daemon": 3, "warm": 3, "watcher": 40, "runner": 40, "program": 40, "burial": 40}


def count(arena: Trial) -> dict[tuple[str, str], int]:
    """How many calls each role makes in each life when nothing fails."""
    most: dict[tuple[str, str], int] = {}
    arena.case("ends", Plan())  # the first case makes files that stay for all later cases
    for life in LIFES:
        for _ in range(DRY_RUNS):
            outcome = arena.case(life, Plan())
            assert not outcome.problems, outcome
            for role in ROLES[life]:
                most[life, role] = max(most.get((life, role), 0), outcome.seen.counts[role])
    return most


def every_plan(most: dict[tuple[str, str], int], rng: random.Random, *, once: bool) -> list[tuple[str, Plan]]:
    """A crash, an error and a lasting error at each call; or (``once``) one of the three, drawn by the seed."""
    plans = []
    for (life, role), calls in most.items():
        for n in range(1, calls + BEYOND + 1):
            three = [
                Plan(role, n, KILL),
                Plan(role, n, FAIL, rng.randrange(4)),
                Plan(role, n, FAIL, rng.randrange(4), LASTING[role]),
            ]
            drawn = rng.choice(three)
            plans += [(life, plan) for plan in ([drawn] if once else three)]
    rng.shuffle(plans)
    return plans


def work(arguments: argparse.Namespace) -> int:
    """Do the work of one worker. Prints a line of JSON for each case."""
    rng = random.Random(arguments.seed)
    until = time.monotonic() + arguments.seconds
    with trial(use_cgroup=arguments.cgroup) as arena:
        if arguments.plan:
            role, n, action, pick, repeat = arguments.plan.split(":")[1:]
            plans = [(arguments.plan.split(":")[0], Plan(role, int(n), int(action), int(pick), int(repeat)))]
        else:
            most = count(arena)
            _say({"counts": {f"{life} {role}": calls for (life, role), calls in most.items()}})
            plans = every_plan(most, rng, once=arguments.once)
            plans = plans[arguments.part :: arguments.parts]
        for life, plan in plans:
            if time.monotonic() > until:
                break
            _say(_as_json(arena.case(life, plan)))
    return 0


def _be_init() -> None:
    """Be the first process of a namespace: orphans become its children, and it must collect them. The work goes on in a
    child: this function returns only in the child."""
    child = os.fork()
    while child:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _say(record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)


def _as_json(outcome: Outcome) -> dict[str, Any]:
    plan = ":".join([outcome.life, *[str(field) for field in outcome.plan]])
    return {
        "plan": plan,
        "fired": outcome.seen.fired,
        "call": outcome.seen.call,
        "problems": outcome.problems,
        "attempts": outcome.attempts,
        "seconds": outcome.seconds,
        "text": str(outcome),
    }


def start(arguments: argparse.Namespace, part: int, *, use_cgroup: bool) -> subprocess.Popen[str]:
    """Start a worker in its own process namespace."""
    argv = [
        "unshare",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
        sys.executable,
        "-m",
        "syscalls",
        "--worker",
        "--part",
        str(part),
        "--parts",
        str(arguments.parts),
        "--seed",
        str(arguments.seed),
        "--seconds",
        str(arguments.seconds),
        *(["--once"] if arguments.once else []),
        *(["--cgroup"] if use_cgroup else []),
        *(["--plan", arguments.plan] if arguments.plan else []),
    ]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parts", type=int, default=0, help="into how many parts the plans are cut; 0: one a worker")
    parser.add_argument("--workers", type=int, default=2 * (os.cpu_count() or 1), help="for each of the two set-ups")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no case after this")
    parser.add_argument("--once", action="store_true", help="at each call a crash, an error or a lasting error: one")
    parser.add_argument("--plan", default="", help="only this one, as it was printed")
    parser.add_argument("--set-up", choices=("both", "cgroup", "none"), default="both")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--part", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--cgroup", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        _be_init()
        return work(arguments)
    workers = 1 if arguments.plan else arguments.workers
    arguments.parts = arguments.parts or workers
    set_ups = {"both": (True, False), "cgroup": (True,), "none": (False,)}[arguments.set_up]
    tally = Tally()
    readers = []
    for use in set_ups:
        for part in range(workers):
            process = start(arguments, part, use_cgroup=use)
            readers.append(threading.Thread(target=tally.follow, args=(process, "cgroup" if use else "no cgroup")))
            readers[-1].start()
    for reader in readers:
        reader.join()
    if tally.seconds:
        mean_s, longest_s = sum(tally.seconds) / len(tally.seconds), max(tally.seconds)
        print(f"{mean_s:.1f} s a case, the longest {longest_s:.1f} s")
    print(f"{dict(tally.cases)}; failed: {tally.failed}; by call: {dict(tally.calls.most_common())}")
    return 1 if tally.failed or tally.broken or not tally.cases else 0


class Tally:
    """The results of all workers."""

    def __init__(self) -> None:
        self.cases: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.failed = self.broken = 0
        self._one_at_a_time = threading.Lock()

    def follow(self, process: subprocess.Popen[str], where: str) -> None:
        """Read one worker's output to its end, and print each case that failed."""
        assert process.stdout is not None
        others = []
        for line in process.stdout:
            if not line.startswith('{"'):
                others.append(line)
                continue
            with self._one_at_a_time:
                self._take(json.loads(line), where)
        if process.wait():
            self.broken += 1
            print(f"a worker ({where}) ended with {process.returncode}:\n{''.join(others)[-6000:]}", flush=True)

    def _take(self, said: dict[str, Any], where: str) -> None:
        if "counts" in said:
            print(f"{where}: {said['counts']}", flush=True)
            return
        if "plan" not in said:
            return  # a line of a daemon's log, which a worker prints when it fails
        self.cases[where] += 1
        self.seconds.append(said["seconds"])
        if len(self.seconds) % PROGRESS == 0:
            print(f"… {dict(self.cases)}, failed: {self.failed}", flush=True)
        if said["fired"]:
            self.cases[f"{where}, the fault came"] += 1
            self.calls[said["call"]] += 1
        if said["problems"]:
            self.failed += 1
            print(f"FAILED, {where}, --plan {said['plan']}\n  {said['text']}", flush=True)
