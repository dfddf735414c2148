"""The program coordd, and python -m coordd. `coordd exec` is loaded without the other commands: it must start fast."""

import os
import sys


def main() -> None:
    """The program."""
    if sys.argv[1:2] == ["exec"]:
        from coordd.once.command import main as once

        code = once(sys.argv[2:])
        if code is not None:
            os._exit(code)  # nothing is buffered, and Python's own end takes milliseconds
    from coordd.cli.coordd import main as program

    program()


if __name__ == "__main__":
    main()
