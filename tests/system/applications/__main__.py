"""`make applications`: the submitter is killed at each line of the launch path, on both fakes and a real Standalone
cluster, again and again.
"""

from __future__ import annotations

import argparse
import contextlib
import time

from support.servers.spark import StandaloneCluster

from system.applications.launch_path import play
from system.applications.standalone import KIND
from system.applications.tracked import FAKES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--on", choices=(*FAKES, KIND), action="append", help="by default on all")
    options = parser.parse_args()
    for kind in options.on or (*FAKES, KIND):
        with contextlib.ExitStack() as stack:
            real = stack.enter_context(StandaloneCluster()) if kind == KIND else None
            began = time.monotonic()
            good = play(kind, options.rounds, options.seed, real)
            print(f"{kind}: one application every time, {dict(good)}, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
