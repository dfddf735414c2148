"""make plans: edits by number, each compared; the first that differs ends it."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from plans.edits import edit, expected, planned


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(prog="plans", description=__doc__)
    parser.add_argument("--edits", type=int, default=10_000, help="how many [10000]")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first [0]")
    given = parser.parse_args()
    told = dict.fromkeys(("same", "changed", "added", "removed", "refused", "differences"), 0)
    with tempfile.TemporaryDirectory(prefix="coordd-plans-") as directory:
        for seed in range(given.seed, given.seed + given.edits):
            one = edit(seed)
            found, wanted = planned(one, Path(directory)), expected(one)
            if found is None:
                told["refused"] += 1
                continue
            if found != wanted:
                sys.exit(f"edit {seed} differs\n{one}\nplanned  {found}\nexpected {wanted}")
            told[wanted.change] += 1
            told["differences"] += len(wanted.added) + len(wanted.removed) + len(wanted.moved)
            if (seed + 1) % 1000 == 0:
                print(f"{seed + 1 - given.seed} edits: {told}", flush=True)
    print(f"{given.edits} edits, from {given.seed}: all as brute force says; {told}")


if __name__ == "__main__":
    main()
