"""`make arrivals`: 10,000 files, five nodes; ARGS="--files 500 --nodes 3" for less."""

from __future__ import annotations

import argparse
import secrets
import signal
import sys

from kills.command import conclude
from rich.console import Console

from arrivals.play import Plan, play


def main() -> int:
    parser = argparse.ArgumentParser(prog="make arrivals", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="when files appear and nodes die")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--kill-every", type=float, default=10.0, metavar="SECONDS", help="a node that polls is killed")
    parser.add_argument("--backend", choices=("embedded", "production"), default="embedded")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes everything, as ^C does
    console = Console()
    console.print(f"arrivals, SEED={chosen.seed}", highlight=False)
    plan = Plan(chosen.seed, chosen.files, chosen.nodes, chosen.kill_every, chosen.backend)
    with console.status("starting") as status:
        verdict = play(plan, status.update)
    return conclude(console, f"arrivals-{chosen.seed}", {**plan._asdict(), **verdict._asdict()})


if __name__ == "__main__":
    sys.exit(main())
