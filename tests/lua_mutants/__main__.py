"""`make mutants-lua`."""

import sys

from lua_mutants.command import main

if __name__ == "__main__":
    sys.exit(main())
