"""The wait of one caller for one run. It asks the daemon of this machine until the run is granted here, or is over."""

import os
import time

from coordd.adapters.control_line import DEFAULT_SOCKET, ControlLine
from coordd.core.attempt import lease_deadline
from coordd.errors import RefusedError, UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOCK = "lock"

# Timeout for the daemon's answer to a claim: more than twice the timeout of the ledger.
ANSWER_S = 10.0

# A daemon that has answered before may be restarting: the caller waits up to this long (seconds) for it.
AWAY_S = 60.0

# Pause (seconds) between two questions of a loser whether the run is over. It grows from the first value to the second.
AGAIN_S = 0.1
AGAIN_MAX_S = 1.0

# Before its tick the caller asks for a run at least this often (seconds), because somebody may set the clock.
EARLY_MAX_S = 10.0

# A caller that was granted the run and could not start COMMAND asks again, so often, after this pause (seconds).
TRIES_MAX = 20
ONCE_MORE_S = 0.5

# The machine's files of time zones.
ZONES = "/usr/share/zoneinfo"

# Normal ends of a run: if another machine had the run, the caller prints nothing about them.
USUAL = ("success", "failure", "rejected")


class Asking:
    """The wait. The caller calls ``step`` again and again, and pauses for the time that each call returns."""

    def __init__(
        self,
        job: str,
        how: str,
        what: str,
        *,
        timezone: str = "",
        lease_s: float = 0.0,
        wait: bool = False,
        socket: str = "",
    ) -> None:
        """``how``: lock, id, tick or every. ``what``: the key. ``wait``: whether to wait for a lock."""
        environ = os.environ
        given = socket or environ.get("COORDD_SOCKET") or environ.get("COORDD_CONTROL_SOCKET") or DEFAULT_SOCKET
        self.socket = os.path.abspath(given)  # the runner, and COMMAND, may have another directory
        self.line = ControlLine(self.socket, ANSWER_S)
        self.granted: dict[str, Any] = {}  # the answer that grants the run
        self.why = ""  # why the run is not granted, or not yet
        self.unusual = False  # True if a person should hear of it
        self.before = ""  # the state of a run of an id that was over when this caller first asked
        self._id = how == "id"
        self._lock = how == LOCK
        self._wait = wait
        self._patient = wait or not self._lock
        self._about: dict[str, Any] = {"job": job, "how": how, "ident": "", "lease": lease_s}
        if not self._lock:
            self._about["what"] = what
        if how == "tick":
            self._about["timezone"] = timezone or _machine_zone()
        self._nonce = os.urandom(16).hex()
        self._attempt = 0
        self._sent_at = 0.0
        self._answered_at = 0.0  # 0.0: the daemon has not answered yet
        self._pause_s = AGAIN_S
        self._tries = 0

    def step(self) -> "float | None":
        """Ask once. Returns the seconds until the next step, or None when the run is granted (``granted``) or over.

        Raises the errors of ``ControlLine.call``, except for a daemon or a ledger that may soon be back.
        """
        now = time.monotonic()
        self._sent_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        params = {**self._about, "nonce": self._nonce, "attempt": self._attempt, "wait": self._wait}
        try:
            answer: dict[str, Any] = self.line.call("exec", params)
        except UnavailableError as exc:
            if not self._answered_at or not self._patient or now > self._answered_at + AWAY_S:
                raise
            self.why, self.unusual = str(exc), False
            return AGAIN_MAX_S
        except RefusedError as exc:
            if exc.kind not in ("unavailable", "try_later"):
                raise
            if not self._patient:
                raise UnavailableError(str(exc)) from exc
            self.why, self.unusual = str(exc), True
            self.line.close()
            self._answered_at = now
            return AGAIN_MAX_S
        self.line.close()  # the control socket accepts only a few connections
        self._answered_at = now
        first = not self._about["ident"]
        self._about["ident"] = answer["ident"]
        self._attempt = answer["attempt"]
        if answer["word"] == "granted":
            self.granted = answer
            return None
        if first and self._id and answer["word"] == "finished":
            self.before = answer["state"]
        return self._not_granted(answer)

    def _not_granted(self, answer: "dict[str, Any]") -> "float | None":
        self.why, word, state = answer["why"], answer["word"], answer["state"]
        self.unusual = state == "unknown"
        if word == "finished" and self._patient and self._lock and state == "rejected":
            # Another caller was faster. This asks for a new run, which waits for the end of the other one.
            self._about["ident"], self._nonce = "", os.urandom(16).hex()
        elif word == "finished":
            self.why, self.unusual = f"{answer['run']} is {state}: {self.why}", state not in USUAL
            return None
        elif not self._patient:
            return None
        in_s: float = answer["in_s"]
        if word == "early":
            return min(max(in_s, 0.0), EARLY_MAX_S)
        pause_s = min(max(in_s, self._pause_s), AGAIN_MAX_S)
        self._pause_s = min(2 * self._pause_s, AGAIN_MAX_S)
        return pause_s

    def again(self) -> bool:
        """The grant came to nothing: the command was not started, and the run is not over. Returns True if the caller
        waits on, as every other caller of the run does.
        """
        self._tries += 1
        if not self._patient or self._tries > TRIES_MAX:
            return False
        # With a new nonce it is another claim: the old grant may still be in the ledger, and must not be used.
        self.granted, self._nonce = {}, os.urandom(16).hex()
        return True

    def spec(self) -> "dict[str, Any]":
        """The facts about the grant that a runner needs."""
        granted = self.granted
        held = granted["held"]
        return {
            **granted["terms"],
            "run": granted["run"],
            "job": granted["job"],
            "attempt": granted["attempt"],
            "token": granted["token"],
            "nonce": self._nonce,
            "node": granted["node"],
            "fire_at": 0.0,  # the daemon has waited for the fire time, by the ledger's clock
            "deadline": lease_deadline(self._sent_at, granted["left_s"]),
            "ledger": f"control:{self.socket}",
            "ledger_options": {"about": held},
            "digest": "",  # the daemon knows the digest
            "policy": held["policy"],
            "scheduled": False,
            "args": "{}",
            "directory": "",
        }


def _machine_zone() -> str:
    """The IANA name of the time zone that cron uses on this machine; "" if no file names it."""
    if told := os.environ.get("CRON_TZ"):
        return told
    named = os.environ.get("TZ", "").removeprefix(":")
    if named == "UTC" or ("/" in named and not named.startswith("/")):
        return named
    # Without a slash it may be a rule, such as CET-1CEST. The file localtime is the machine's zone, and no zone's name.
    if named not in ("", "localtime") and os.path.isfile(f"{ZONES}/{named}"):
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
