"""The watcher: ends everything when the runner dies without a report, or hangs.

It is as simple as possible, so that it does not fail itself: it reads a pipe and a clock.
"""

import marshal
import os
import select
import sys

from coordd.adapters import place
from coordd.core.attempt import watcher_kill_at
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.words import FAILURE, LOST, RECOVERING, RETRY, STALE
from coordd.core.runs import knowledge
from coordd.runner import kernel
from coordd.runner.asker import Asker
from coordd.runner.facts import FACT_FILE, Facts
from coordd.runner.kernel import SIGKILL, SIGTERM, boottime
from coordd.runner.tree import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# CLOCK_BOOTTIME may have advanced while a poll slept (suspend): check at least this often (seconds).
LOOK_S = 1.0

# A runner that has said bye must exit within this time (seconds).
BYE_S = 5.0

# The pause between two rounds of SIGKILL; it grows to the second value.
KILL_AGAIN_S = 0.02
KILL_AGAIN_MAX_S = 0.5

# A process that does not die (uninterruptible sleep) is not waited for longer than this (seconds); then nothing is
# reported.
KILL_LIMIT_S = 600.0

# How long (seconds) the watcher tries to report; after that the daemon continues from the files, and the lease lapses
# anyway.
REPORT_LIMIT_S = 60.0
REPORT_AGAIN_S = 0.2

# Parts of the spec that no watcher needs: the program's own, and secrets.
LEFT_OUT = ("argv", "env", "launcher_port", "launcher_secret", "unit_secrets")


class Watcher:
    """Watches one runner."""

    def __init__(self, spec: "dict[str, Any]", tree: Tree, runner: int, pet_fd: int, runner_start_ticks: int) -> None:
        self.spec = spec
        self.tree = tree
        self.runner = runner
        self.runner_start_ticks = runner_start_ticks
        self.pet_fd = pet_fd
        self.deadline: float = spec["deadline"]
        self.petted = False  # the runner may have executed the program
        self.program = 0  # its pid, from then on
        self.said: dict[str, Any] | None = None  # the end according to the runner; state "" once it has reported
        self.said_bye = False
        self.gone = False
        # It has lived throughout, as the parent of the runner: so it has had every orphan of the attempt as its child.
        self.guarded = True
        self.introduced = True  # the tree's cgroup is the one that the runner has used
        self._rest = b""
        self._terminated = False
        os.set_blocking(pet_fd, False)

    def run(self) -> None:
        """Run until the runner says bye, or everything is ended."""
        wake_fd = self._take_signals()
        poll = select.poll()
        poll.register(self.pet_fd, select.POLLIN)
        poll.register(wake_fd, select.POLLIN)
        while True:
            self._reap()
            if self._may_leave():
                break
            if self.gone:
                self._end_everything("the runner died")
                return
            left_s = self._kill_at() - boottime()
            if left_s <= 0:
                self._end_everything("the runner hung and its lease was about to end")
                return
            for fd, _ in poll.poll(int(min(left_s, LOOK_S) * 1000 + 0.999)):
                if fd == wake_fd:
                    self._woken(fd)
                else:
                    self._read()
        self._see_off()

    def _may_leave(self) -> bool:
        return self.said_bye

    def _kill_at(self) -> float:
        if self.petted and self.spec["on_lost"] == "hold":
            return float("inf")
        return watcher_kill_at(self.deadline, self.spec["kill_grace_s"])

    def _take_signals(self) -> int:
        return kernel.take_signals(self._terminate)

    def _terminate(self) -> None:
        self._terminated = True

    def _woken(self, fd: int) -> None:
        kernel.drain(fd)
        if self._terminated and self._runner_is_ours():
            self._terminated = False
            self._signal_runner(SIGTERM)  # it ends the job and reports; we exit when it does

    def _read(self) -> None:
        try:
            data = os.read(self.pet_fd, 65536)
        except OSError:
            return  # nothing yet, or it cannot be read now
        if not data:
            self.gone = True
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            words = line.split()
            if not words:
                continue
            if words[0] == b"pet":
                self.deadline = float(words[1])
                self.tree.session = int(words[2])
                self.program = int((words + words[2:])[3])  # a runner of an older version says only the session
                self.petted = True
            elif words[0] == b"wait":
                self.deadline = float(words[1])  # renewed, but still no permission to execute
            elif words[0] == b"unit":
                self.tree.cgroup = words[1].decode()  # the program waits in this one
            elif words[0] == b"end":
                self._heard_end(line[4:])
            elif words[0] == b"told":
                self.said = {"state": ""}  # the runner has reported
            elif words[0] == b"bye":
                self.said_bye = True

    def _heard_end(self, text: bytes) -> None:
        """The end, as the runner will report it."""
        import json

        self.said = json.loads(text)

    def _reap(self) -> None:
        """Collect dead children; as a subreaper we get the runner's orphans too."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.runner:
                self.gone = True
                self.tree.spare.discard(pid)
                self._read()  # its last lines

    def _signal_runner(self, number: int) -> None:
        assert self.runner > 1
        try:
            os.kill(self.runner, number)
        except ProcessLookupError:
            self.gone = True

    def _see_off(self) -> None:
        """The runner said bye: wait for its exit, and make sure that nothing is left."""
        limit = boottime() + BYE_S
        while self._runner_is_ours() and boottime() < limit:
            self._wait(KILL_AGAIN_S)
        self._kill_everything()

    # ---- ending everything

    def _end_everything(self, why: str) -> None:
        left = self._kill_everything()
        facts = self._open_facts()
        if left:
            facts.append("untold", sync=True, reason=f"{why}; these cannot be killed: {left}", watcher=True)
            return
        said = self._last_said()
        if said is None and not self._knows():
            reason = f"{why}; whether all of its processes have ended cannot be seen from here"
            kernel.complain(reason)
            facts.append("untold", sync=True, reason=reason, watcher=True)
            return
        asker = Asker(self.spec["ledger"], self.spec["ledger_timeout_s"], self.spec.get("ledger_options"))
        told: Answer | None = None
        if said is None:
            # Without a pet, the runner never had permission to execute anything.
            state = LOST if self.petted else RETRY
            said = {"state": state, "exit_code": None, "reason": why, "application_id": self._application_id()}
            told = self._ask_report(asker, said)
            # otherwise the ledger knows an end already, and only the ledger knows which
            if told is None or told.word != STALE:
                facts.append("ended" if self.petted else "refused", sync=True, watcher=True, lines=[], **said)
        if said["state"]:
            self._report(asker, facts, said, told)

    def _knows(self) -> bool:
        """True if the attempt is certainly over, now that this watcher has found nothing more to kill."""
        elsewhere = str(self.spec.get("elsewhere", ""))
        return bool(knowledge.is_over(self.spec.get("place", {}), place.here(), self._seen(), elsewhere))

    def _seen(self) -> str:
        # A program in a unit is nobody's child here, but without a pet there was none.
        if self.guarded and not (self.petted and "unit" in self.spec):
            return knowledge.GUARDED
        if self.introduced and self.tree.cgroup:
            return knowledge.CGROUP if place.cgroup_is_empty(self.tree.cgroup) else knowledge.NOTHING
        try:
            everything = place.shows_every_process() and not self.tree.has_strangers()
        except OSError as exc:
            kernel.complain(f"cannot see all processes: {exc}")
            return knowledge.NOTHING
        return knowledge.ALL if everything else knowledge.NOTHING

    def _has_children(self) -> bool:
        """True if a process of the attempt is our child: a subreaper gets each orphan, even one that /proc hides."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def _kill_everything(self) -> "list[int]":
        """Kill until nothing is left; returns the processes that cannot be killed."""
        limit = boottime() + KILL_LIMIT_S
        pause_s = KILL_AGAIN_S
        while True:
            if self._runner_is_ours():
                self._signal_runner(SIGKILL)  # first, so that it starts nothing more
            else:
                self.gone = True
                self.tree.spare.discard(self.runner)  # before another process with its pid could count as an ancestor
            left = self._kill_tree(pause_s)
            if self.gone:
                if not left:
                    self.tree.remove_cgroup()
                    return []
                if boottime() >= limit:
                    return left
            pause_s = min(pause_s * 2, KILL_AGAIN_MAX_S)

    def _kill_tree(self, pause_s: float) -> "list[int]":
        """One round of SIGKILL; returns the remaining processes, or [0] if that cannot be seen."""
        try:
            self.tree.signal(SIGKILL)
            self._wait(pause_s)
            return self.tree.members() or ([0] if self.tree.populated() or self._has_children() else [])
        except OSError as exc:
            kernel.complain(f"cannot see all of the program's processes, and tries again: {exc}")
            self._wait(pause_s)
            return [0]

    def _runner_is_ours(self) -> bool:
        """True if the runner is alive, and its pid has not become another process's."""
        if self.gone:
            return False
        try:
            return kernel.start_ticks(self.runner) == self.runner_start_ticks != 0
        except OSError:
            return True  # it cannot be seen now; tried again soon

    def _wait(self, seconds: float) -> None:
        select.poll().poll(int(seconds * 1000))
        self._reap()

    def _open_facts(self) -> Facts:
        return Facts(self.spec["directory"])

    def _facts(self) -> "list[dict[str, Any]]":
        import json

        try:
            with open(f"{self.spec['directory']}/{FACT_FILE}", "rb") as file:
                lines = file.read().split(b"\n")
        except OSError as exc:
            kernel.complain(f"{self.spec['directory']}/{FACT_FILE}: {exc.strerror}")
            return []
        facts = []
        for line in lines:
            try:
                fact = json.loads(line)
            except ValueError:
                continue  # partial: the runner died while writing, or the disk was full
            if isinstance(fact, dict) and "fact" in fact:
                facts.append(fact)
        return facts

    def _last_said(self) -> "dict[str, Any] | None":
        """The end according to the runner itself: it may have died between this and its report."""
        said = self.said  # the disk may have refused it
        for fact in self._facts():
            if fact["fact"] in ("ended", "refused"):
                said = fact
            elif fact["fact"] == "reported" and said is not None:
                return {"state": ""}  # the runner has reported
        return said

    def _application_id(self) -> str:
        for fact in self._facts():
            if fact["fact"] == "application":
                return str(fact["application_id"])
        return ""

    def _ask_report(self, asker: Asker, said: "dict[str, Any]") -> "Answer | None":
        """Report to the ledger once; None if it does not answer, or has forgotten the grant."""
        from coordd.core.ledger.runner_requests import Grant, Report

        spec = self.spec
        final = bool(said.get("final")) and said["state"] == FAILURE
        grant = Grant(run=spec["run"], attempt=spec["attempt"], token=spec["token"], nonce=spec["nonce"])
        report = Report(
            grant=grant,
            state=said["state"],
            exit_code=said["exit_code"],
            reason=said["reason"],
            application_id=said["application_id"],
            final=final,
        )
        answer = asker.call(report)
        # If the ledger has forgotten the grant, the node restores it from its journal: until then nothing is reported.
        return answer if answer is not None and answer.word != RECOVERING else None

    def _report(self, asker: Asker, facts: Facts, said: "dict[str, Any]", told: "Answer | None") -> None:
        """Report to the ledger, so that nobody has to wait for the lease."""
        limit = boottime() + REPORT_LIMIT_S
        while told is None and boottime() < limit:
            told = self._ask_report(asker, said)
            if told is None:
                self._wait(REPORT_AGAIN_S)
        if told is not None:
            facts.append("reported", state=said["state"], answer=told.word, watcher=True)


def start_watcher(boot: str, spec: "dict[str, Any]", watch: "dict[str, Any]") -> "tuple[int, int, int]":
    """Start it as a new program; returns (pid, a descriptor that reports its death, one that reports ours to it).

    A fork would be faster, but a thread may be in the middle of a request to the ledger. Raises OSError if the machine
    has no room for it, and leaves nothing open.
    """
    fds: list[int] = []
    try:
        for _ in range(3):
            fds.extend(os.pipe())
        life_fd, its_life, its_pet, pet_fd, its_stdin, spec_fd = fds
        for inherited in (its_pet, its_life):
            os.set_inheritable(inherited, True)
        about = ["coordd-watcher", spec["run"], "attempt", str(spec["attempt"])]  # for people who read ps
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-E", "-c", boot, *about],
            {"LANG": "C.UTF-8"},
            file_actions=[(os.POSIX_SPAWN_DUP2, its_stdin, 0)],
            setsid=True,
        )
        for fd in (its_stdin, its_pet, its_life):
            os.close(fd)
            fds.remove(fd)
        shown = {key: value for key, value in spec.items() if key not in LEFT_OUT}
        shown["watch"] = {**watch, "fds": (its_pet, its_life)}
        with open(spec_fd, "wb", closefd=False) as file:
            file.write(marshal.dumps(shown))
        os.close(spec_fd)
        fds.remove(spec_fd)
    except OSError:
        for fd in fds:
            os.close(fd)
        raise
    return pid, life_fd, pet_fd
