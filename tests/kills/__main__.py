"""`make ticks` and `make owners`."""

import sys

from kills.command import main

if __name__ == "__main__":
    sys.exit(main())
