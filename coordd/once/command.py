"""`coordd exec`, from its arguments to its exit code.

It asks the daemon of this machine until the run is granted here, or is over. It is loaded without click: the start of
the command is what its callers wait for. coordd/cli/coordd.py shows the help, and the mistakes in arguments.
"""

import _signal  # type: ignore[import-not-found]  # no stub; signal itself costs 3 ms
import os
import time

from coordd.adapters.control_line import DEFAULT_SOCKET, ControlLine
from coordd.errors import CoorddError, RefusedError, UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "coordd exec"

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNAVAILABLE = 69
EXIT_NOT_RUN = 75
EXIT_NOT_PERMITTED = 77
CODES = {"invalid_params": EXIT_USAGE, "bad_argument": EXIT_USAGE, "not_permitted": EXIT_NOT_PERMITTED}

# Timeout for the daemon's answer to a claim: more than twice the ledger's.
ANSWER_S = 10.0

# A daemon that was there before may restart: it is waited for this long (seconds).
AWAY_S = 60.0

# How often (seconds) a loser asks whether the run is over: the pause grows from the first to the second.
AGAIN_S = 0.1
AGAIN_MAX_S = 1.0

# Until its tick, a run is asked for again at least this often (seconds): the clock may be set.
EARLY_MAX_S = 10.0

LOCK = "lock"
# How the run is keyed, and the option with the key.
KEYED = {"--tick": "tick", "--every": "every", "--id": "id"}
VALUED = {**dict.fromkeys(KEYED), "--job": "job", "--lease": "lease", "-E": "code", "--timezone": "timezone"}
VALUED["--socket"] = "socket"

# The ends of a run that nobody needs to hear of, when another machine had it.
USUAL = ("success", "failure", "rejected")


class Options:
    """What the command line says."""

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
    """The options; None if something is wrong with them, or help is wanted: click will say it."""
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
    if not found.command or len(keys) > 1 or not 0 <= found.code <= 255 or ("--lease" in said and found.lease_s <= 0):
        return None
    if keys:
        found.how, found.what = KEYED[keys[0]], said[keys[0]]
    found.wait, found.verbose = "--wait" in said, "--verbose" in said
    found.timezone, found.socket = said.get("--timezone", ""), said.get("--socket", "")
    return found


def main(args: "list[str]") -> "int | None":
    """The exit code; None if click should look at the arguments."""
    options = parsed(args)
    if options is None:
        return None
    if _signal.getsignal(_signal.SIGINT) != _signal.SIG_IGN:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # without a traceback
    return run(options)


def run(options: Options) -> int:
    """Run the command here, or wait until it was run elsewhere; returns the exit code."""
    asking = _Asking(options)
    try:
        return asking.run()
    except RefusedError as exc:
        say(f"{exc}" + (f" ({exc.hint})" if exc.hint else ""))
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
    """One line for the person, or for cron's mail."""
    try:
        os.write(2, f"{NAME}: {text}\n".encode(errors="replace"))
    except OSError:
        return


class _Asking:
    """The wait of one caller for one run."""

    def __init__(self, options: Options) -> None:
        self.options = options
        environ = os.environ
        self.socket = (
            options.socket or environ.get("COORDD_SOCKET") or environ.get("COORDD_CONTROL_SOCKET") or DEFAULT_SOCKET
        )
        self.line = ControlLine(self.socket, ANSWER_S)
        self.about: dict[str, Any] = {"job": options.job, "how": options.how, "ident": "", "lease": options.lease_s}
        if options.how in ("tick", "every", "id"):
            self.about["what"] = options.what
        if options.how == "tick":
            self.about["timezone"] = options.timezone or _machine_zone()
        self.attempt = 0
        self.answered_at = 0.0  # 0.0: the daemon has not answered yet
        self.pause_s = AGAIN_S
        self.told = ""

    def run(self) -> int:
        patient = self.options.how != LOCK or self.options.wait
        nonce = os.urandom(16).hex()
        while True:
            sent_at = time.clock_gettime(time.CLOCK_BOOTTIME)
            answer = self._ask(nonce, patient=patient)
            word = answer["word"]
            if word == "granted":
                return self._hold(answer, nonce, sent_at)
            self.line.close()  # places on the control socket are few
            self.about["ident"] = answer["ident"]
            self.attempt = answer["attempt"]
            why = answer["why"]
            if word == "finished":
                if patient and self.options.how == LOCK and answer["state"] == "rejected":
                    self.about["ident"] = ""  # another caller was faster: wait for its end
                else:
                    self._tell(f"{answer['run']} is {answer['state']}: {why}", loud=answer["state"] not in USUAL)
                    return self.options.code
            elif not patient:
                self._tell(why, loud=False)
                return self.options.code
            else:
                self._tell(why, loud=answer["state"] == "unknown")
            self._sleep(word, answer["in_s"])

    def _ask(self, nonce: str, *, patient: bool) -> "dict[str, Any]":
        """The daemon's answer. Raises as ``ControlLine.call``, but waits for a daemon or a ledger that will be back."""
        wait = self.options.wait
        while True:
            now = time.monotonic()
            try:
                params = {**self.about, "nonce": nonce, "attempt": self.attempt, "wait": wait}
                answer: dict[str, Any] = self.line.call("exec", params)
                self.answered_at = now
                return answer
            except UnavailableError as exc:
                if not self.answered_at or not patient or now > self.answered_at + AWAY_S:
                    raise
                self._tell(str(exc), loud=False)
            except RefusedError as exc:
                if exc.kind not in ("unavailable", "try_later"):
                    raise
                if not patient:
                    raise UnavailableError(str(exc)) from exc
                self.answered_at = now
                self._tell(str(exc), loud=True)
                self.line.close()
            self._sleep("", AGAIN_MAX_S)

    def _sleep(self, word: str, in_s: float) -> None:
        if word == "early":
            time.sleep(min(max(in_s, 0.0), EARLY_MAX_S))
            return
        time.sleep(min(max(in_s, self.pause_s), AGAIN_MAX_S))
        self.pause_s = min(2 * self.pause_s, AGAIN_MAX_S)

    def _tell(self, text: str, *, loud: bool) -> None:
        """A loser is silent: cron would send a mail from every machine but one."""
        if (loud or self.options.verbose) and text != self.told:
            self.told = text
            say(text)

    def _hold(self, granted: "dict[str, Any]", nonce: str, sent_at: float) -> int:
        """The run is ours: keep the lease, and run the command under it."""
        from coordd.core.attempt import lease_deadline
        from coordd.once.foreground import hold

        self.line.close()
        held = granted["held"]
        env = {
            **os.environ,
            "COORDD_RUN": granted["run"],
            "COORDD_JOB": granted["job"],
            "COORDD_ATTEMPT": str(granted["attempt"]),
            "COORDD_TOKEN": str(granted["token"]),
            "COORDD_NODE": granted["node"],
            "COORDD_FIRE_TIME": granted["fire_time"],
            "COORDD_SOCKET": self.socket,
        }
        spec = {
            **granted["terms"],
            "run": granted["run"],
            "job": granted["job"],
            "attempt": granted["attempt"],
            "token": granted["token"],
            "nonce": nonce,
            "node": granted["node"],
            "fire_at": 0.0,  # the daemon has waited for it, by the ledger's clock
            "deadline": lease_deadline(sent_at, granted["left_s"]),
            "ledger": f"control:{self.socket}",
            "ledger_options": {"about": held},
            "digest": "",  # the daemon knows it
            "policy": held["policy"],
            "scheduled": False,
            "args": "{}",
            "argv": self.options.command,
            "env": env,
            "directory": "",
        }
        front = hold(spec)
        code = front.exit_code()
        state, reason = front.end.get("state", ""), front.end.get("reason", "")
        if code is None:
            say(f"{granted['run']} was not run here: {reason or 'the ledger gave the attempt to another machine'}")
            return self.options.code
        if state not in ("success", "failure") or reason.startswith(("cannot ", "timeout ")):
            say(f"{granted['run']}: {reason or 'its runner was killed, and COMMAND with it'}")
        return code


def _machine_zone() -> str:
    """The IANA name of the zone that cron uses here; "" if no file names it."""
    named = os.environ.get("CRON_TZ") or os.environ.get("TZ", "")
    if named and "/" in named.lstrip(":") and not named.startswith((":", "/")):
        return named
    try:
        _, mark, zone = os.readlink("/etc/localtime").partition("zoneinfo/")
    except OSError:
        mark = zone = ""
    if mark:
        return zone.removeprefix("posix/").removeprefix("right/").replace("Etc/UTC", "UTC")
    try:
        with open("/etc/timezone", "rb") as file:
            return file.read(200).decode(errors="replace").strip().replace("Etc/UTC", "UTC")
    except OSError:
        return "" if os.path.exists("/etc/localtime") else "UTC"
