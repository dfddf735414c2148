"""`make sim, make mutants`."""

import sys

from simulator.command import main

if __name__ == "__main__":
    sys.exit(main())
