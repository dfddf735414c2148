"""The runner: holds the lease of one attempt, starts its program when the gate opens, ends it on request.

One loop around core.attempt.Attempt, which decides. Before the program is executed, the ledger is asked in place;
afterwards by a thread, because nothing may prevent this loop from killing. Work that nobody waits for (facts, the
command socket) is done before the fire time, or after the start.
"""

import os
import time

from coordd.core import attempt as core
from coordd.core.actions import (
    ASK_GATE,
    ASK_RENEW,
    ASK_REPORT,
    ASK_RESTORE,
    EXIT,
    KILL,
    TERM,
    Action,
    AskGate,
    AskReport,
    AskRestore,
    Exec,
    Pet,
    Terms,
)
from coordd.core.attempt import Attempt
from coordd.core.ledger.runner_requests import Gate, Grant, Renew
from coordd.runner import kernel
from coordd.runner.asker import Asker, report_of, restore_of
from coordd.runner.kernel import SIGKILL, SIGTERM, boottime
from coordd.runner.loop import Loop, until_due
from coordd.runner.program import Program, environment_of
from coordd.runner.tree import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from coordd.runner.facts import Facts
    from coordd.runner.output import Output
    from coordd.runner.sockets.commands import Commands
    from coordd.runner.sockets.guard import Guard

# Processes that are left when the program exits get TERM, and KILL after this time (seconds), again and again.
LEFTOVERS_TERM_S = 1.0
LOOK_FOR_LEFTOVERS_S = 0.05
KILL_AGAIN_S = 0.1

# The maximum length of a reason for the watcher: a line to it is atomic up to 4096 bytes (PIPE_BUF), and JSON may take
# six bytes per character.
WATCHER_REASON_MAX = 500

# If watchers are killed this many times, somebody wants it: then the job ends.
WATCHERS_MAX = 5

# If the machine has no room for a new watcher (processes, descriptors), the next try comes after this time (seconds).
# After the last try the job ends.
WATCH_AGAIN_S = 0.2
WATCH_TRIES_MAX = 300

# A module that could not be loaded is loaded again after this time (seconds).
LOAD_AGAIN_S = 0.02

SHUT_DOWN = "the machine or a person shut the runner down"

NEVER = float("inf")

# There is no leave to execute yet.
BEFORE_EXEC = (core.WAITING, core.GATING, core.READY)


class Runner:
    """One attempt, from its claim to its report."""

    def __init__(self, spec: "dict[str, Any]", boot: str, watcher: int, life_fd: int, pet_fd: int) -> None:
        self.spec = spec
        self.boot = boot  # the Python text that starts this package, for a new watcher
        self.grant = Grant(run=spec["run"], attempt=spec["attempt"], token=spec["token"], nonce=spec["nonce"])
        self.watcher = watcher
        self.watchers = 1
        self.watch_at = NEVER  # when a new watcher is tried again
        self.watch_tries = 0
        self.pet_fd = pet_fd
        self.facts: Facts | None = None
        self.commands: Commands | None = None
        self.guard: Guard | None = None
        self.guard_address = ""  # "": no guard is offered
        self.output: Output | None = None  # from the program's execution on
        self.exec_failure = ""
        self.asked = ASK_RENEW  # the last request of the asker's thread
        self.refused = ""  # the gate's answer if it was not ok
        self.recorded = False
        self.last_words = b""  # the end as told to the watcher: a new watcher is told it too
        self.done = False
        self.terminated = False
        self.childless = False
        self.kill_again_at = NEVER
        self.look_at = NEVER  # when leftovers are looked for again
        self.leftovers_kill_at = NEVER
        self.start_ticks = kernel.start_ticks(os.getpid())
        self.loop = Loop()
        self.loop.on(kernel.take_signals(self._terminate), self._woken)
        self.program = self._fork_program()
        cgroup = spec.get("cgroup", "") if self.program.in_cgroup else ""
        self.tree = Tree(spec["nonce"], cgroup, {os.getpid()}, spec["born_ticks"])
        self.tree.session = self.program.session
        os.set_blocking(pet_fd, False)
        self.loop.on(life_fd, self._watcher_died)
        self.asker = Asker(spec["ledger"], spec["ledger_timeout_s"], spec.get("ledger_options"))
        self.loop.on(self.asker.fd, self._renewed)
        self.attempt = Attempt(
            Terms(
                deadline=spec["deadline"],
                lease_s=spec["lease_s"],
                renew_interval_s=spec["renew_interval_s"],
                ledger_timeout_s=spec["ledger_timeout_s"],
                kill_grace_s=spec["kill_grace_s"],
                on_lost=spec["on_lost"],
                timeout_s=spec.get("timeout_s", 0.0),
                final_exit_codes=tuple(spec.get("never_on_codes", ())),
            ),
            wait_s=until_due(spec),
            now=boottime(),
        )
        self.asker.connect()  # before the fire time, if it is in the future

    def run(self) -> None:
        """Run until the attempt is over and reported."""
        while not self.done:
            if self.attempt.phase == core.READY:
                self.loop.look()  # a command that has come is obeyed, rather than the program started
            if boottime() >= self.watch_at:
                self._watch_again()
            self.attempt.timer(boottime())
            self._act()
            self._look_after_program()
            self._act()
            if self.done:
                break
            waits = self.attempt.phase in BEFORE_EXEC
            if waits and self.facts is None:
                self._introduce()
            wait_at = min(self.attempt.timer_at(), self.look_at, self.kill_again_at, self.watch_at)
            self.loop.wait(wait_at - boottime(), fine=waits)
        self.tree.remove_cgroup()
        self._tell_watcher(b"bye\n")
        if self.commands is not None:
            self.commands.remove()

    # ---- the attempt's actions

    def _act(self) -> None:
        while actions := self.attempt.take_actions():
            for action in actions:
                self._do(action)

    def _do(self, action: Action) -> None:
        word = action.word
        if isinstance(action, AskGate):
            self._ask_gate(action.ahead_s)
        elif isinstance(action, Pet):
            self._tell_watcher(f"pet {action.deadline} {self.tree.session} {self.program.pid}\n".encode())
        elif isinstance(action, Exec):
            self._execute(action.at)
        elif word == ASK_RENEW:
            launched = self.attempt.phase in (core.RUNNING, core.ENDING)
            renew = Renew(
                grant=self.grant, lease_s=self.spec["lease_s"], application_id=self._application_id(), launched=launched
            )
            if self.asker.ask(renew):
                self.asked = ASK_RENEW
        elif isinstance(action, AskRestore):
            self._ask_restore(action.state)
        elif word == TERM:
            self._signal_tree(SIGTERM)
        elif word == KILL:
            self._kill()
        elif isinstance(action, AskReport):
            self._ask_report(action)
        elif word == EXIT:
            if not self.recorded:
                gate = f"the gate said {self.refused}"
                self._record("", gate if self.refused else "the ledger has given this attempt up")
            self.done = True

    def _ask_gate(self, ahead_s: float) -> None:
        if problem := self.program.prepare(self.attempt.deadline - self.spec["kill_grace_s"]):
            self.attempt.shut_down(problem, now=boottime())
            return
        sent_at = boottime()
        answer = self.asker.call(Gate(grant=self.grant, ahead_s=ahead_s))
        self.refused = answer.word if answer is not None else ""
        self.attempt.answered(answer, question=ASK_GATE, sent_at=sent_at, now=boottime())

    def _renewed(self, _fd: int) -> None:
        answer, sent_at = self.asker.take()
        self._look_after_files()
        self.attempt.answered(answer, question=self.asked, sent_at=sent_at, now=boottime())
        if self.attempt.phase == core.WAITING:
            self._tell_watcher(f"wait {self.attempt.deadline}\n".encode())

    def _ask_restore(self, state: str) -> None:
        """The ledger has forgotten our grant: we are its witness."""
        restore = restore_of(self.spec, self.grant, state, self._application_id())
        self._say("restoring", state=state)
        if self.attempt.phase != core.REPORTING:
            if self.asker.ask(restore):
                self.asked = ASK_RESTORE
            return
        sent_at = boottime()
        answer = self.asker.call(restore)  # no process is left that would have to be killed meanwhile
        self.attempt.answered(answer, question=ASK_RESTORE, sent_at=sent_at, now=boottime())

    def _ask_report(self, end: AskReport) -> None:
        if not self.recorded:
            self._record(end.state, end.reason)
        sent_at = boottime()
        answer = self.asker.call(report_of(self.grant, end, self._application_id()))
        if answer is not None:
            self._last_words(b"told\n")
            self._say("reported", state=end.state, answer=answer.word)
        self.attempt.answered(answer, question=ASK_REPORT, sent_at=sent_at, now=boottime())

    def _application_id(self) -> str:
        return self.output.application_id if self.output is not None else ""

    # ---- facts and commands

    def _introduce(self) -> None:
        """Write who we are, and listen for commands."""
        from coordd.runner.facts import Facts

        self.facts = Facts(self.spec["directory"])
        self._say_who()
        self._listen()

    def _listen(self) -> None:
        """Listen for commands; if the disk refuses now, each renewal tries again."""
        from coordd.runner.sockets.commands import Commands

        try:
            self.commands = Commands(self.spec["directory"])
        except OSError as exc:
            kernel.complain(f"cannot take commands in {self.spec['directory']}: {exc.strerror}")
            return
        self.loop.on(self.commands.fd, self._commanded)

    def _listen_to_program(self) -> None:
        """Answer the program's questions; without a free descriptor this fails, and each renewal tries again."""
        if not self.guard_address or self.guard is not None or self.output is None:
            return
        try:
            self.guard = self._make_guard()
        except (ImportError, OSError) as exc:
            kernel.complain(f"cannot answer the program's guard: {exc}")

    def _make_guard(self) -> "Guard":
        from coordd.runner.sockets.guard import Guard

        return Guard(self.spec, self.guard_address, self.loop, lambda: self.attempt.phase)

    def _look_after_files(self) -> None:
        """Write facts that the disk has refused; create our files again if somebody has removed them."""
        self._listen_to_program()
        if self.facts is None:
            return
        if self.facts.failure or not self.facts.is_there():
            self.facts.catch_up()
        if self.commands is not None and not self.commands.is_there():
            self.loop.off(self.commands.fd)
            self.commands.close()
            self.commands = None
        if self.commands is None:
            self._listen()

    def _say_who(self) -> None:
        grant = self.grant
        try:
            ticks, boot = kernel.start_ticks(self.watcher), kernel.boot_id()
        except OSError as exc:
            kernel.complain(f"cannot say who watches: {exc}")
            ticks, boot = 0, ""
        self._say(
            "adopted",
            run=grant.run,
            attempt=grant.attempt,
            token=grant.token,
            nonce=grant.nonce,
            watcher=self.watcher,
            watcher_start_ticks=ticks,
            boot_id=boot,
            cgroup=self.tree.cgroup,
        )

    def _say(self, fact: str, *, sync: bool = False, **fields: object) -> None:
        if self.facts is None:
            self._introduce()
        assert self.facts is not None
        self.facts.append(fact, sync=sync, **fields)

    def _record(self, state: str, reason: str) -> None:
        """Pass on how it ended: first to the watcher, and to the disk if it accepts it."""
        from coordd.adapters.lean_json import encode

        self.recorded = True
        self.program.discard()
        end: dict[str, object] = {
            "state": state,
            "exit_code": self.attempt.exit_code,
            "reason": reason,
            "final": self.attempt.final,
            "application_id": self._application_id(),
        }
        short = encode({**end, "reason": reason[:WATCHER_REASON_MAX]})
        self._last_words(f"end {short}\n".encode())
        ran = self.output is not None or self.exec_failure
        self._say(
            "ended" if ran else "refused",
            sync=True,
            **end,
            lines=self.output.log.lines() if self.output else [],
            log_failure=self.output.log.failure if self.output else "",
        )

    def _commanded(self, _fd: int) -> None:
        assert self.commands is not None, "the loop looks at it"
        word, reason = self.commands.take()
        if word == "cancel":
            self.attempt.cancel(reason or "cancelled", now=boottime())
        elif word == "shutdown":
            self.attempt.shut_down(reason or "shut down", now=boottime())

    def _terminate(self) -> None:
        self.terminated = True

    def _woken(self, fd: int) -> None:
        kernel.drain(fd)
        if self.terminated:
            self.terminated = False
            self.attempt.shut_down(SHUT_DOWN, now=boottime())

    # ---- the program

    def _environment(self) -> "dict[str, str]":
        self.guard_address = f"abstract:coordd-guard/{os.urandom(16).hex()}"
        return environment_of(self.spec, self.guard_address)

    def _fork_program(self) -> Program:
        """The program: a child that waits for its start."""
        spec = self.spec
        if "unit" in spec:
            from coordd.runner.unit.program import UnitProgram

            return UnitProgram(spec, self._environment(), self.loop, self._placed, self._unit_stopped)
        label = kernel.label_of(spec["nonce"])
        return Program(spec["argv"], self._environment(), spec.get("cwd", ""), spec.get("cgroup", ""), label)

    def _placed(self, cgroup: str) -> None:
        """The program waits in its unit. The watcher and the facts know where before it may start."""
        self.tree.cgroup = cgroup
        self.tree.session = self.program.session
        self._tell_watcher(f"unit {cgroup}\n".encode())
        if self.facts is not None:
            self._say_who()

    def _unit_stopped(self) -> None:
        self.attempt.shut_down("its unit was stopped", now=boottime())

    def _execute(self, at: float) -> None:
        if self.terminated or not self.attempt.may_exec(max(at, boottime())):
            self.program.discard()
            self.attempt.refused_late(now=boottime(), reason=SHUT_DOWN if self.terminated else core.TOO_LATE)
            return
        if not self.program.release(at):
            self.exec_failure = self.program.failure() or ""  # it may have said why it could not be executed
            if not self.exec_failure:
                self.attempt.refused_late(now=boottime(), reason="its process was killed before it could be executed")
                return
        self.loop.on(self.program.status_fd, self._status)

    def _status(self, fd: int) -> None:
        """The program has been executed, or could not be."""
        failure = self.program.failure()
        if failure is None:
            return
        executed_at = time.time()
        if not (failure or self.exec_failure) and not self._can_follow():
            return
        self.loop.off(fd)
        os.close(fd)
        self.program.status_fd = -1  # the number may soon be another descriptor's
        self.exec_failure = failure or self.exec_failure
        if self.exec_failure:
            return
        pid = self.program.pid
        self.output = self._follow()
        called, ticks = self.program.called_at(), kernel.start_ticks_seen(pid)
        self._say("started", at=executed_at, called=called, program=pid, program_start_ticks=ticks)
        self._listen_to_program()

    def _follow(self) -> "Output":
        """Follow the program's output."""
        from coordd.runner.output import Output

        return Output(self.spec, self.program.output_fd, self.loop, self._identified)

    def _can_follow(self) -> bool:
        """Load the modules that follow the program. Without a free descriptor this fails, and is tried again."""
        try:
            import coordd.runner.facts
            import coordd.runner.output  # noqa: F401  # imported for what it does
        except (ImportError, OSError) as exc:
            kernel.complain(f"cannot follow the program yet: {exc}")
            time.sleep(LOAD_AGAIN_S)
            return False
        return True

    def _identified(self, application_id: str) -> None:
        self._say("application", application_id=application_id)
        self.attempt.hurry(now=boottime())  # the ledger learns it with a renewal

    def _kill(self) -> None:
        self._signal_tree(SIGKILL)
        self.kill_again_at = boottime() + KILL_AGAIN_S

    def _signal_tree(self, number: int) -> None:
        self.program.signal(number)
        try:
            self.tree.signal(number)
        except OSError as exc:
            kernel.complain(f"cannot see all of the program's processes, and tries again: {exc}")

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                return
            self.program.reaped(pid, status)

    def _look_after_program(self) -> None:
        """After the exit: make sure that no process is left, then report the end."""
        now = boottime()
        self._reap()
        if now >= self.kill_again_at:
            self._kill()
            self._reap()
        if self.program.exit_code is None or self.attempt.phase not in (core.RUNNING, core.ENDING):
            return
        if now < self.look_at < NEVER and not self.childless:
            return
        if self._is_left():
            self._end_leftovers(now)
            return
        self.look_at = self.kill_again_at = NEVER
        if self.tree.session:  # nothing has it any more, and its number may become another process's
            self.tree.session = 0
            self._tell_watcher(f"pet {self.attempt.deadline} 0 {self.program.pid}\n".encode())
        if self.loop.has(self.program.status_fd):
            self._status(self.program.status_fd)
        if self.loop.has(self.program.status_fd):
            return  # its execution cannot be confirmed yet, or it cannot be followed yet: tried again soon
        if self.output is None:
            self.attempt.exec_failed(self.exec_failure, self.program.unexecuted_code(), now=now)
            return
        self.output.finish()
        is_final, trips, detail = False, False, ""
        if self.program.exit_code != 0:
            is_final, trips, detail = self.output.verdict()
        self.attempt.ended(self.program.exit_code, now=now, final=is_final, trips=trips, detail=detail)

    def _is_left(self) -> bool:
        """True if a process of the program's tree is alive, or may be: /proc cannot be read now."""
        try:
            if self.childless or "unit" in self.spec:
                return self.tree.populated()  # its processes descend from us, a subreaper, or are in their unit
            return bool(self.tree.members())
        except OSError as exc:
            kernel.complain(f"cannot see whether something of the program is left, and looks again: {exc}")
            return True

    def _end_leftovers(self, now: float) -> None:
        if self.leftovers_kill_at == NEVER:
            self.leftovers_kill_at = now + min(LEFTOVERS_TERM_S, self.spec["kill_grace_s"] / 2)
            self._signal_tree(SIGTERM)
        elif now >= self.leftovers_kill_at and self.kill_again_at == NEVER:
            self._kill()
        self.look_at = now + LOOK_FOR_LEFTOVERS_S

    # ---- the watcher

    def _tell_watcher(self, line: bytes) -> None:
        try:
            os.write(self.pet_fd, line)
        except OSError:
            return  # the watcher is dead (its life pipe reports it), stopped, or not there; dropping this is harmless

    def _last_words(self, line: bytes) -> None:
        self.last_words = line
        self._tell_watcher(line)

    def _watcher_died(self, fd: int) -> None:
        """The watcher died: start another one."""
        self.loop.off(fd)
        os.close(fd)
        os.close(self.pet_fd)
        self.pet_fd = -1
        self.tree.spare.discard(self.watcher)
        if self.watchers >= WATCHERS_MAX:
            self.attempt.shut_down(f"its watcher was killed {self.watchers} times", now=boottime())
            return
        self._watch_again()

    def _watch_again(self) -> None:
        """Start a new watcher. If the machine has no room for it now, this is tried again, and in the end given up."""
        watch = {
            "runner": os.getpid(),
            "runner_start_ticks": self.start_ticks,
            "session": self.tree.session,
            "cgroup": self.tree.cgroup,
            "deadline": self.attempt.deadline,
            "petted": self.attempt.phase not in BEFORE_EXEC,
        }
        self.watch_at = NEVER
        try:
            from coordd.runner.watcher import start_watcher

            self.watcher, life_fd, pet_fd = start_watcher(self.boot, self.spec, watch)
        except (ImportError, OSError) as exc:
            self.watch_tries += 1
            kernel.complain(f"cannot start a watcher: {exc}")
            if self.watch_tries < WATCH_TRIES_MAX:
                self.watch_at = boottime() + WATCH_AGAIN_S
            else:
                self.attempt.shut_down(f"no new watcher could be started: {exc}", now=boottime())
            return
        self.watchers += 1
        self.watch_tries = 0
        self.childless = False
        os.set_blocking(pet_fd, False)
        self.pet_fd = pet_fd
        self.tree.spare.add(self.watcher)
        self.loop.on(life_fd, self._watcher_died)
        if self.last_words:
            self._tell_watcher(self.last_words)
        self._say_who()
