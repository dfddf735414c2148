"""`make arrivals`: 10,000 files, five nodes; ARGS="--files 500 --nodes 3" for less.

ARGS="--rows 1000000": entries of a stream, each a row of the ledger, none launched; --minutes 30: as many as fit.
"""

from __future__ import annotations

import argparse
import math
import secrets
import signal
import sys

from kills.command import conclude
from rich.console import Console

from arrivals import rows
from arrivals.play import Plan, play


def main() -> int:
    parser = argparse.ArgumentParser(prog="make arrivals", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="when files appear and nodes die")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rows", type=int, help="arrivals as rows of the ledger, instead of files and programs")
    parser.add_argument("--minutes", type=float, default=math.inf, help="with --rows: no further arrivals after these")
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--kill-every", type=float, default=10.0, metavar="SECONDS", help="a node that polls is killed")
    parser.add_argument("--backend", choices=("embedded", "production"), default="embedded")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes everything, as ^C does
    console = Console()
    console.print(f"arrivals, SEED={chosen.seed}", highlight=False)
    with console.status("starting") as status:
        if chosen.rows:
            many = rows.Plan(chosen.seed, chosen.rows, chosen.nodes, chosen.kill_every, chosen.minutes * 60)
            told = {**many._asdict(), **rows.play(many, status.update)._asdict()}
        else:
            plan = Plan(chosen.seed, chosen.files, chosen.nodes, chosen.kill_every, chosen.backend)
            told = {**plan._asdict(), **play(plan, status.update)._asdict()}
    return conclude(console, f"arrivals-{'rows-' if chosen.rows else ''}{chosen.seed}", told)


if __name__ == "__main__":
    sys.exit(main())
