"""`make ticks`, `make owners`, `make pool`, `make diamond`: nodes are killed again and again; every run happens once.

make ticks                      1,000 ticks of `coordd exec --tick` from five crontabs, with clocks 5 s off
make ticks ARGS="--rounds 2"    80 ticks
make owners                     scheduled jobs; two of five nodes are killed around each fire time
make pool                       500 triggers for a pool of 4; two of five nodes are killed every 14 s
make diamond                    one run, 1,000 after it, one after these; one of five nodes is killed every 5 s
make diamond ARGS="--members 50"
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from kills import owners, pool, ticks
from kills.following import diamond

TOP = Path(__file__).resolve().parents[2]
SHOWN_MAX = 30

PLANS: dict[str, tuple[Any, Any]] = {
    "ticks": (ticks.run, ticks.Plan),
    "owners": (owners.run, owners.Plan),
    "pool": (pool.run, pool.Plan),
    "diamond": (diamond.run, diamond.Plan),
}
OPTIONS = ("seed", "rounds", "jobs", "triggers", "members", "kills")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make ticks", description=__doc__)
    parser.add_argument("what", choices=tuple(PLANS))
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="who is killed when")
    parser.add_argument("--rounds", type=int, help="how often the jobs fire")
    parser.add_argument("--jobs", type=int, help="how many jobs fire together")
    parser.add_argument("--triggers", type=int, help="how many runs are asked for")
    parser.add_argument("--members", type=int, help="how many runs are between the first and the last")
    parser.add_argument("--kills", type=int, help="how many nodes are killed each time")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes everything, as ^C does
    console = Console()
    play, plan = PLANS[chosen.what]
    some = {name: said for name in OPTIONS if (said := getattr(chosen, name)) is not None}
    if wrong := some.keys() - set(plan._fields):
        parser.error(f"{chosen.what} has no --{', --'.join(sorted(wrong))}")
    console.print(f"{chosen.what}, SEED={chosen.seed}", highlight=False)
    with console.status("starting") as status:
        verdict, about = play(plan(**some), status.update)
    told = {"what": chosen.what, **about, "counts": verdict.counts, "violations": verdict.violations}
    return conclude(console, f"kills-{chosen.what}-{chosen.seed}", told)


def conclude(console: Console, name: str, told: dict[str, Any]) -> int:
    """Write what a trial ``told`` to a file of that name, and show its ``counts`` and ``violations``. Returns the exit
    code.
    """
    output = TOP / "artifacts" / f"{name}.json"
    output.parent.mkdir(exist_ok=True)
    output.write_text(json.dumps(told, indent=1) + "\n")
    for word, count in told["counts"].items():
        console.print(f"{word}: {count}", highlight=False)
    violations = told["violations"]
    for violation in violations[:SHOWN_MAX]:
        console.print(f"[red]{violation}[/red]", highlight=False)
    console.print(f"written to {output}; {len(violations)} violations", highlight=False)
    return int(bool(violations))
