"""`coordd exec`, from its arguments to its exit code.

It is loaded without click, because the caller waits for the start of the command. coordd/cli/coordd.py shows the help
and the errors in arguments.
"""

import _signal  # type: ignore[import-not-found]  # no stub; signal itself costs 3 ms
import os
import sys
import time

from coordd.core.jobs.owner import guard_command
from coordd.errors import CoorddError, RefusedError, UnavailableError
from coordd.once.asking import LOCK, ONCE_MORE_S, Asking

NAME = "coordd exec"

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_BAD_JOB = 65
EXIT_UNAVAILABLE = 69
EXIT_NOT_RUN = 75
EXIT_NOT_PERMITTED = 77
CODES = {
    "invalid_params": EXIT_USAGE,
    "bad_argument": EXIT_USAGE,
    "bad_job": EXIT_BAD_JOB,
    "not_permitted": EXIT_NOT_PERMITTED,
}

# The kind of key of the run, and the option that gives the key.
KEYED = {"--tick": "tick", "--every": "every", "--id": "id"}
VALUED = {**dict.fromkeys(KEYED), "--job": "job", "--lease": "lease", "-E": "code", "--timezone": "timezone"}
VALUED["--socket"] = "socket"


class Options:
    """The options of the command line."""

    def __init__(self) -> None:
        self.job = ""
        self.how = LOCK
        self.what = ""
        self.timezone = ""
        self.lease_s = 0.0
        self.wait = False
        self.code = EXIT_NOT_RUN
        self.verbose = False
        self.socket = ""
        self.command: list[str] = []


def parsed(args: "list[str]") -> "Options | None":
    """Returns the options; None if they are wrong or the caller wants help: then click prints the message."""
    found = Options()
    args = list(args)
    said: dict[str, str] = {}
    while args and args[0] != "--" and args[0].startswith("-"):
        option, equals, value = args.pop(0).partition("=")
        if option in ("--wait", "--verbose") and not equals:
            said[option] = "yes"
        elif option in VALUED and option not in said and (equals or args):
            said[option] = value if equals else args.pop(0)
        else:
            return None
    found.command = args[1:] if args[:1] == ["--"] else args
    keys = [option for option in KEYED if option in said]
    try:
        found.job = said["--job"]
        found.lease_s = float(said.get("--lease", "0"))
        found.code = int(said.get("-E", str(EXIT_NOT_RUN)))
    except (KeyError, ValueError):
        return None
    if not found.command or len(keys) > 1 or not 0 <= found.code <= 255 or "" in said.values():
        return None
    if "--lease" in said and not 0 < found.lease_s < float("inf"):
        return None
    if keys:
        found.how, found.what = KEYED[keys[0]], said[keys[0]]
    found.wait, found.verbose = "--wait" in said, "--verbose" in said
    found.timezone, found.socket = said.get("--timezone", ""), said.get("--socket", "")
    return found


def main(args: "list[str]") -> "int | None":
    """Returns the exit code; None if click must handle the arguments."""
    options = parsed(args)
    if options is None:
        return None
    _fill_standard_streams()
    if _signal.getsignal(_signal.SIGINT) != _signal.SIG_IGN:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # ^C ends it without a traceback
    return run(options)


def _fill_standard_streams() -> None:
    """A pipe must not get the number of a standard stream that the caller has closed. COMMAND finds it closed."""
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        pass
    os.close(fd)


def run(options: Options) -> int:
    """Run the command here, or wait until it has run on another machine; returns the exit code."""
    told = ""
    asking = Asking(
        options.job,
        options.how,
        options.what,
        timezone=options.timezone,
        lease_s=options.lease_s,
        wait=options.wait,
        socket=options.socket,
    )
    try:
        while True:
            while (pause_s := asking.step()) is not None:
                # A loser prints nothing: otherwise cron would send a mail from every machine except one.
                if (asking.unusual or options.verbose) and asking.why != told:
                    told = asking.why
                    say(told)
                time.sleep(pause_s)
            if asking.granted:
                code = _hold(options, asking)
                if code is not None:
                    return code
                time.sleep(ONCE_MORE_S)
                continue
            # Success is said to a person only: a fast command is over when cron starts the callers on other machines.
            told_before = asking.before == "failure" or (asking.before and os.isatty(2))
            if told_before:
                say(f"{asking.why}; COMMAND runs once for each id: give another --id")
            elif asking.unusual or options.verbose:
                say(asking.why)
            return options.code
    except RefusedError as exc:
        option = "--" if f"--{str(exc).partition(':')[0]}" in VALUED else ""  # the daemon says `every: expected …`
        say(f"{option}{exc}" + (f" ({exc.hint})" if exc.hint else ""))
        return CODES.get(exc.kind, EXIT_FAILED)
    except UnavailableError as exc:
        say(f"{exc}; COMMAND was not started")
        return EXIT_UNAVAILABLE
    except CoorddError as exc:
        say(str(exc))
        return EXIT_FAILED
    finally:
        asking.line.close()


def say(text: str) -> None:
    """Print one line for the person, or for cron's mail."""
    try:
        os.write(2, f"{NAME}: {text}\n".encode(errors="replace"))
    except OSError:
        return


def _hold(options: Options, asking: Asking) -> "int | None":
    """The run is granted here: keep the lease, and run the command under it.

    Returns None if the command was not started and the caller waits on: it is not known yet whether the run is over.
    """
    from coordd.once.foreground import BY_SIGNAL, hold

    granted = asking.granted
    env = {
        **os.environ,
        "COORDD_RUN": granted["run"],
        "COORDD_JOB": granted["job"],
        "COORDD_ATTEMPT": str(granted["attempt"]),
        "COORDD_TOKEN": str(granted["token"]),
        "COORDD_NODE": granted["node"],
        "COORDD_FIRE_TIME": granted["fire_time"],
        "COORDD_SOCKET": asking.socket,
        **guard_command(sys.executable, os.path.dirname(os.path.dirname(__file__))),
    }
    front = hold({**asking.spec(), "argv": options.command, "env": env})
    code = front.exit_code()
    state, reason = front.end.get("state", ""), front.end.get("reason", "")
    if code is None:
        why = f"{granted['run']} was not run here: {reason or 'the ledger gave the attempt to another machine'}"
        if not front.ended_by and asking.again():
            front.leave()
            if options.verbose:
                say(f"{why}; this machine asks again")
            return None
        say(why)
        return BY_SIGNAL + front.ended_by if front.ended_by else options.code
    if state not in ("success", "failure") or reason.startswith(("cannot ", "timeout ")):
        say(f"{granted['run']}: {reason or 'its runner was killed, and COMMAND with it'}")
    return code
