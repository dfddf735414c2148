"""`make syscalls`."""

import sys

from syscalls.command import main

if __name__ == "__main__":
    sys.exit(main())
