"""The program of an attempt whose driver is on a cluster: it looks the application up, submits it, follows it.

Before anything is submitted, the cluster manager is asked for applications of this run, and the runner for the run's
earlier attempts. What follows from both is decided in coordd/core/jobs/applications.py. The exit code counts only after
``over``. In every case that is not certain, the tracker loses sight of the run, and the ledger holds it.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from coordd.adapters.cluster import properties
from coordd.adapters.cluster.opening import open_manager
from coordd.core.jobs import applications
from coordd.core.jobs.applications import (
    ADOPT,
    ALIVE,
    ENDED,
    SUCCEEDED,
    TAKE_END,
    UNSEEN,
    Application,
    Decision,
    Earlier,
    decide,
    pod_name,
)
from coordd.errors import UnavailableError
from coordd.runner.channel import Printed
from coordd.runner.cluster.link import Link

# Pauses between two look-ups of a living application (seconds): they grow, for the sake of the cluster manager.
POLL_MIN_S = 0.5
POLL_MAX_S = 10.0
POLL_GROWS = 1.3

# Tries of a look-up before the submission, and the pause between two (seconds).
TRIES = 5
TRY_AGAIN_S = 2.0

# If spark-submit has failed by itself and has printed no id of an application, nothing was submitted after this number
# of look-ups that find nothing. Then it is called again after a pause (seconds), which triples each time. On YARN a
# printed id proves nothing: "Submitting application ID" comes before anything is submitted. So the look-ups ask for it.
EMPTY_LOOKUPS = 3
SUBMIT_AGAIN_S = 10.0
SUBMIT_AGAIN_MAX_S = 300.0

# The variables of an attempt that a driver elsewhere has no use for. A Standalone master gives a driver the environment
# of its spark-submit, and a driver that finds the launcher's port connects to its own machine, where nobody listens.
OURS_ALONE = (
    "COORDD_NONCE",
    "COORDD_GUARD",
    "COORDD_GUARD_COMMAND",
    "COORDD_SOCKET",
    "_SPARK_LAUNCHER_PORT",
    "_SPARK_LAUNCHER_SECRET",
)

# An application that was seen is gone when this number of look-ups in a row does not show it.
MISSING_LOOKUPS = 5

# A cluster manager answers within this time (seconds), which is shorter than the time for an ordinary end.
ANSWER_S = 5.0

# A cluster manager that is away is mentioned in the log this often (seconds).
COMPLAIN_S = 60.0

# How often (seconds) a stop is looked for while something is waited for.
LOOK_S = 0.2

# After a stop, the end of an application is asked for again after this time (seconds).
END_AGAIN_S = 2.0

# Exit codes (sysexits.h).
EXIT_UNAVAILABLE = 69
EXIT_STOPPED = 143

OUTPUT_BYTES = 65536

# The ids of drivers on Standalone begin so.
DRIVER = "driver-"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.ports import Applications


class StoppedError(Exception):
    """The runner has sent TERM."""


def main() -> None:
    """``sys.argv``: the options as JSON, "--", and the command of spark-submit."""
    os.environ.setdefault("PATH", os.defpath)
    options, command = json.loads(sys.argv[1]), sys.argv[3:]
    tracker = Tracker(options, command, Link(os.environ))
    signal.signal(signal.SIGTERM, tracker.stop)
    signal.signal(signal.SIGINT, tracker.stop)
    try:
        tracker.run()
    except StoppedError:
        tracker.stopped()
    except Exception as exc:  # our own mistake says nothing about the application
        traceback.print_exc()
        tracker.lose_sight(f"its tracker failed: {type(exc).__name__}: {exc!s:.200}")


class Tracker:
    """One attempt's submission or adoption. ``options``: mark, master, settle_s (seconds until a submitted application
    is shown), submits (how often spark-submit may be called), yarn_command.
    """

    def __init__(self, options: dict[str, Any], command: Sequence[str], link: Link) -> None:
        self.mark = str(options["mark"])
        self.settle_s = float(options["settle_s"])
        self.poll_max_s = float(options.get("poll_max_s", POLL_MAX_S))
        self.try_again_s = float(options.get("try_again_s", TRY_AGAIN_S))
        self.submits = int(options.get("submits", 1))
        self.submit_again_s = float(options.get("submit_again_s", SUBMIT_AGAIN_S))
        self.master = str(options["master"])
        self.yarn_command = str(options.get("yarn_command", ""))
        self.command = list(command)
        self.link = link
        self.earlier: list[Earlier] = []
        self.following = ""  # the application's id
        self.shown = ""  # where a person sees it
        self.named = ""  # the id that a Standalone master has given to the driver that was submitted
        self.submitting = False  # something was submitted, or may have been, and no application is known yet
        self._manager: Applications | None = None
        self._stopped = False
        self._complained_at = -COMPLAIN_S

    # ---- the whole life

    def run(self) -> NoReturn:
        """Until the application has ended. Raises StoppedError."""
        decision = self._first_look()
        if decision.word == UNSEEN:
            self.lose_sight("its application was seen earlier, and the cluster manager does not show it any more")
        if decision.word == applications.SUBMIT:
            decision = self._submit()
        else:
            assert decision.application is not None
            say(f"{decision.application.id} is there already, of attempt {decision.application.attempt}")
        self._follow(decision)

    def stop(self, _number: int, _frame: object) -> None:
        """A signal: the runner wants the end. Waits look at it."""
        self._stopped = True

    def stopped(self) -> NoReturn:
        """End the application if that is wanted, and wait until it is gone. The runner limits the time."""
        try:
            outcome = self.link.ending()
        except UnavailableError as exc:
            say(str(exc))
            outcome = ""
        if outcome not in ("revoked", "failure"):
            say(f"{self.following or 'what was submitted'} is left to the next owner of the run")
            sys.exit(EXIT_STOPPED)
        asked_at = -END_AGAIN_S
        while True:
            try:
                alive = [one for one in self._find() if one.state == ALIVE]
            except UnavailableError as exc:
                self._complain(exc)
            else:
                if not alive and not self.submitting:
                    break
                for one in alive if time.monotonic() - asked_at >= END_AGAIN_S else ():
                    self.submitting = False
                    self._end(one)
                    asked_at = time.monotonic()
                    try:
                        self._follows(one.id)
                    except UnavailableError as exc:  # it ends all the same
                        self._complain(exc)
            time.sleep(LOOK_S)
        self._finish(EXIT_STOPPED, "nothing of the run is left on the cluster")

    def lose_sight(self, reason: str) -> NoReturn:
        """The end cannot be told: the ledger holds the run."""
        say(reason)
        try:
            self.link.lost_sight(reason)
        except UnavailableError as exc:
            say(str(exc))  # without ``over`` the runner comes to the same end
        sys.exit(EXIT_UNAVAILABLE)

    # ---- before the submission

    def _first_look(self) -> Decision:
        """Without an answer of both, the ledger and the cluster manager, nothing is launched."""
        why, asked = "", False
        for again in range(TRIES):
            if again:
                self._wait(self.try_again_s)
            try:
                self.earlier, asked = self.link.history(), True
                decision = self._decide()
                if decision.word == applications.SUBMIT and self.earlier:
                    self._nothing_hidden(self._way().hidden(self._known()))
                return decision
            except UnavailableError as exc:
                why = f"error: nothing was launched, because the look-up of earlier applications failed: {exc}"
                say(why)
        left = [one.application_id for one in self.earlier if one.application_id and not one.settled]
        if left or not asked:  # an application of an earlier attempt may be alive
            self.lose_sight(why)
        return self._finish(EXIT_UNAVAILABLE, why)

    def _submit(self) -> Decision:
        """Call spark-submit until its application is shown. Calls that submit nothing are counted here, apart from the
        failures of applications.
        """
        again_s = self.submit_again_s
        strangers = self._strangers()
        for number in range(1, self.submits + 1):
            decision, code = self._submit_once(strangers)
            if decision is not None:
                return decision
            why = (
                f"submission {number} of {self.submits} failed: spark-submit ended with exit code {code}, and nothing"
                " was submitted"
            )
            if number == self.submits:
                self._finish(code, why)
            say(f"{why}; the next one in {again_s:g} s")
            self._wait(again_s)
            if (late := self._shown_meanwhile()) is not None:
                return late
            again_s = min(SUBMIT_AGAIN_MAX_S, 3 * again_s)
        raise AssertionError("submits is at least 1")

    def _shown_meanwhile(self) -> Decision | None:
        """An application that a call of spark-submit has left after all."""
        try:
            decision = self._decide()
        except UnavailableError as exc:
            self._complain(exc)
            return None
        return decision if decision.word in (ADOPT, TAKE_END) else None

    def _submit_once(self, strangers: set[str]) -> tuple[Decision | None, int]:
        """Run spark-submit, and wait until its application is shown; None, and the exit code, if nothing was
        submitted. An application that cannot be recognised may be this one, unless it is one of ``strangers``.
        """
        command = list(self.command)
        if self._way().kind == "kubernetes":
            command[1:1] = ["--conf", f"spark.kubernetes.driver.pod.name={pod_name(self.mark, self.earlier)}"]
        self._look_at_stop()
        self.submitting = True
        code, seen = self._run_to_its_end(command)
        say(f"spark-submit ended with {code}" + (f", and named {seen}" if seen else ""))
        refused = code > 0 and (not seen or self._way().kind == "yarn")
        until = time.monotonic() + self.settle_s
        empty, pause_s, why = 0, POLL_MIN_S, ""
        while True:
            try:
                decision = self._decide()
                if decision.word in (ADOPT, TAKE_END):
                    return decision, code
                if refused:
                    self._nothing_hidden(self._way().hidden(self._known() | strangers, ended=True, named=seen))
                empty, why = empty + 1, ""
            except UnavailableError as exc:
                self._complain(exc)
                why = f": {exc}"
            if refused and empty >= EMPTY_LOOKUPS:
                self.submitting = False
                return None, code
            if time.monotonic() >= until:
                self.lose_sight(
                    f"spark-submit ended with {code}, and no application with the tag {self.mark} was shown within"
                    f" {self.settle_s:g} s{why}"
                )
            self._wait(pause_s)
            pause_s = min(self.poll_max_s, pause_s * POLL_GROWS)

    def _run_to_its_end(self, command: list[str]) -> tuple[int, str]:
        """The exit code of spark-submit, and the application id that it has printed."""
        standalone = self._way().kind == "standalone"
        env = {name: value for name, value in os.environ.items() if not (standalone and name in OURS_ALONE)}
        try:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
        except OSError as exc:
            self.submitting = False
            self._finish(127, f"cannot execute {command[0]}: {exc}")
        assert child.stdout is not None
        fd = child.stdout.fileno()
        os.set_blocking(fd, False)
        printed, seen = Printed(), ""
        while True:
            ended = child.poll() is not None  # before the read: what it wrote is there
            try:
                data = os.read(fd, OUTPUT_BYTES)
            except BlockingIOError:
                data = b""
            if data:
                os.write(1, data)
                seen = seen or printed.search(data)
                if standalone and seen.startswith(DRIVER) and not self.named:
                    self.named = seen  # the master has accepted it, and shows it from now on
                    self._follows(seen)
                continue
            if ended:
                child.stdout.close()
                return child.returncode, seen or printed.search(b"\n")
            self._look_at_stop()  # it gets the same signal from the runner
            time.sleep(LOOK_S / 10)

    # ---- after it

    def _follow(self, decision: Decision) -> NoReturn:
        missing, pause_s = 0, POLL_MIN_S
        while True:
            if decision.word == TAKE_END:
                assert decision.application is not None
                self._take_end(decision.application)
            if decision.word == ADOPT:
                assert decision.application is not None
                missing = 0
                self.submitting = False
                self._follows(decision.application.id)
                self._shows(decision.application)
                for other in decision.others:
                    say(f"{other.id} is ended: {decision.application.id} is newer")
                    self._end(other)
            else:
                missing += 1
                if missing >= MISSING_LOOKUPS:
                    self.lose_sight(f"the cluster manager does not show {self.following} any more")
            self._wait(pause_s)
            pause_s = min(self.poll_max_s, pause_s * POLL_GROWS)
            try:
                decision = self._decide()
            except UnavailableError as exc:
                self._complain(exc)  # the application goes on: the job's timeout limits this

    def _take_end(self, one: Application) -> NoReturn:
        self._follows(one.id)
        self._shows(one)
        if one.state == ENDED:
            self.lose_sight(f"{one.id} has ended, and the cluster manager does not say how")
        if one.state == SUCCEEDED:
            self._finish(0, f"{one.id} succeeded")
        code = one.exit_code if one.exit_code is not None and 0 < one.exit_code < 256 else 1
        self._finish(code, f"error: {one.id} {one.state}: {one.detail or 'no reason is given'}")

    def _finish(self, code: int, why: str) -> NoReturn:
        """This exit code is the truth."""
        say(why)
        try:
            self.link.over()
        except UnavailableError as exc:
            say(str(exc))
        sys.exit(code)

    # ---- steps

    def _way(self) -> "Applications":
        """The cluster manager, by the settings that spark-submit gets. Raises UnavailableError."""
        if self._manager is None:
            conf = settings_of(self.command)
            self._manager = open_manager(
                self.master, conf, os.environ, answer_s=ANSWER_S, yarn_command=self.yarn_command
            )
        return self._manager

    def _find(self) -> list[Application]:
        return self._way().find(self.mark, self._known(), [self.link.token, *[one.token for one in self.earlier]])

    def _known(self) -> set[str]:
        """The applications that are certainly of this run, and whose end the ledger may not know."""
        left = [one.application_id for one in self.earlier if not one.settled]
        return {self.following, self.named, *left} - {""}

    def _strangers(self) -> set[str]:
        """Applications that cannot be recognised and are there before the submission. Without an answer none counts as
        such.
        """
        try:
            return {*self._way().hidden(self._known(), ended=True)}
        except UnavailableError as exc:
            self._complain(exc)
            return set()

    def _nothing_hidden(self, hidden: dict[str, str]) -> None:
        """Raises UnavailableError: nobody can tell whether the run has an application."""
        for why in hidden.values():
            raise UnavailableError(why)

    def _decide(self) -> Decision:
        return decide(self._find(), self.earlier)

    def _follows(self, ident: str) -> None:
        if ident != self.following:
            say(f"follows {ident}")
            self.link.follows(ident)
            self.following = ident

    def _shows(self, one: Application) -> None:
        if one.ui and one.ui != self.shown:
            say(f"see {one.ui}")
            self.shown = one.ui

    def _end(self, one: Application) -> None:
        try:
            self._way().end(one.id)
        except UnavailableError as exc:
            self._complain(exc)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self._look_at_stop()
            time.sleep(min(LOOK_S, left_s))
        self._look_at_stop()

    def _look_at_stop(self) -> None:
        if self._stopped:
            raise StoppedError

    def _complain(self, exc: Exception) -> None:
        if time.monotonic() - self._complained_at >= COMPLAIN_S:
            self._complained_at = time.monotonic()
            say(f"{exc}; asked again and again")


def settings_of(command: Sequence[str]) -> dict[str, str]:
    """Spark's settings, from the properties file of a spark-submit. Raises UnavailableError."""
    path = command[command.index("--properties-file") + 1]
    try:
        with open(path, encoding="utf-8") as file:
            return properties.parse(file.read())
    except (OSError, UnicodeDecodeError) as exc:
        raise UnavailableError(f"{path}: {exc}") from exc


def say(text: str) -> None:
    """A line for the log of the run. Nobody reads it when the runner is gone."""
    try:
        os.write(1, f"coordd: {text}\n".encode(errors="replace"))
    except OSError:
        return
