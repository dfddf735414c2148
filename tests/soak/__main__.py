"""`make soak`."""

import sys

from soak.command import main

if __name__ == "__main__":
    sys.exit(main())
