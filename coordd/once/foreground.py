"""A command that keeps its caller's terminal. It has the same runner and watcher as every other program.

    P, the process that the caller started: the watcher. It passes signals on, and returns the command's exit code
     └── the runner, in a session of its own: holds the lease, and kills
          └── the command, in the session and the process group of P: standard streams and terminal are the caller's

A shell that stops or interrupts its foreground job therefore reaches P and the command, and never the runner: a stopped
command keeps its lease.
"""

import _signal  # type: ignore[import-not-found]  # no stub; signal itself costs 3 ms
import os
import select

from coordd.adapters.lean_json import decode
from coordd.runner import kernel
from coordd.runner.facts import Facts
from coordd.runner.holder import Runner
from coordd.runner.kernel import SIGTERM, boottime
from coordd.runner.output import Output
from coordd.runner.program import NOT_EXECUTABLE, NOT_FOUND, Program, execute, has_leave, say_why_not
from coordd.runner.tree import Tree
from coordd.runner.watcher import BYE_S, Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from coordd.runner.sockets.guard import Guard

NAME = "coordd exec"

# Signals that the caller sends to us are for the command. The terminal itself sends the first two to the command.
FROM_TERMINAL = (_signal.SIGINT, _signal.SIGQUIT)
PASSED_ON = (*FROM_TERMINAL, _signal.SIGHUP, SIGTERM, _signal.SIGUSR1, _signal.SIGUSR2, _signal.SIGALRM)

# Python ignores these two when it starts. The caller did not ask for that.
PYTHONS = (_signal.SIGPIPE, _signal.SIGXFSZ)

# As in a shell: signal N ended the command.
BY_SIGNAL = 128

# After the runner's "bye", how often (seconds) the watcher checks whether the runner has exited.
LOOK_FOR_EXIT_S = 0.002


def ignored() -> "tuple[int, ...]":
    """The signals that the caller wants us to ignore (nohup)."""
    numbers = [number for number in range(1, 32) if _signal.getsignal(number) == _signal.SIG_IGN]
    return tuple([number for number in numbers if number not in PYTHONS])


class ForegroundProgram(Program):
    """The command. It has our standard streams, directory and terminal."""

    def __init__(
        self, argv: "list[str]", env: "dict[str, str]", label: int, ignored_signals: "tuple[int, ...]"
    ) -> None:
        """Fork the command, which then waits."""
        self.exit_code: int | None = None
        self.in_cgroup = False
        held, self._release = os.pipe()
        self.status_fd, status = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._release)
            _be_the_command(argv, env, label, ignored_signals, held, status, parent)
        os.close(held)
        os.close(status)
        os.set_blocking(self.status_fd, False)

    @property
    def session(self) -> int:
        """0: its session is the caller's, and contains other processes."""
        return 0


def _be_the_command(
    argv: "list[str]",
    env: "dict[str, str]",
    label: int,
    ignored_signals: "tuple[int, ...]",
    held: int,
    status: int,
    parent: int,
) -> None:
    """In the child: prepare, wait for the byte, execute the command. Never returns."""
    try:
        kernel.die_with_parent(kernel.SIGKILL)
        kernel.carry_label(label)  # if the kernel refuses this, the other methods must be enough
        if os.getppid() != parent:
            os._exit(NOT_EXECUTABLE)
        kernel.reset_signals()
        for number in ignored_signals:
            _signal.signal(number, _signal.SIG_IGN)
        if not has_leave(held):
            os._exit(NOT_EXECUTABLE)
        execute(argv, env)
    except (OSError, ValueError) as exc:
        say_why_not(status, f"execute {argv[0]}", exc)
    finally:
        os._exit(NOT_FOUND)


class Untold(Facts):
    """There is no directory for facts: the daemon knows the run from the ledger, and the watcher reads its pipe."""

    def append(self, fact: str, *, sync: bool = False, **fields: object) -> bool:
        """Write nothing."""
        return True

    def catch_up(self, *, sync: bool = False) -> bool:
        """Nothing is missing."""
        return True

    def is_there(self) -> bool:
        """Return True, because nobody looks for the directory."""
        return True


class Unlogged:
    """Stands in for a log. The output goes where the caller wants it."""

    failure = ""

    def lines(self) -> "list[str]":
        """No lines are kept."""
        return []


class Untouched(Output):
    """The output does not pass through us."""

    def __init__(self) -> None:
        self.log = Unlogged()  # type: ignore[assignment]  # the part of a log that a runner reads
        self.application_id = ""

    def finish(self) -> None:
        """Nothing is left to read."""

    def verdict(self) -> "tuple[bool, bool, str]":
        """Nothing: no pattern was searched for, and the caller has seen the output itself."""
        return False, False, ""


class HeldRunner(Runner):
    """A runner that the daemon did not start.

    It keeps no facts, and only the ledger and its parent give it commands.
    """

    def _make_guard(self) -> "Guard":
        from coordd.once.guard import HeldGuard

        return HeldGuard(self.spec, self.guard_address, self.loop, lambda: self.attempt.phase)

    def _introduce(self) -> None:
        self.facts = Untold("")

    def _listen(self) -> None:
        """There is no socket for the daemon's commands."""

    def _can_follow(self) -> bool:
        return True


class ForegroundRunner(HeldRunner):
    """Holds the lease of a command in the foreground."""

    def _fork_program(self) -> Program:
        spec = self.spec
        label = kernel.label_of(spec["nonce"])
        program = ForegroundProgram(spec["argv"], self._environment(), label, spec["ignored"])
        # This comes after the command has got our session. Signals to the command's process group, and hang-ups of its
        # terminal, are not for us.
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1):  # the reader of a pipe must see its end when the command ends, even if we still run
            os.dup2(null, fd)
        os.close(null)
        os.chdir("/")
        return program

    def _follow(self) -> Output:
        return Untouched()

    def _watcher_died(self, fd: int) -> None:
        """The process that the caller started was killed. The command must not run without a watcher."""
        self.loop.off(fd)
        os.close(fd)
        os.close(self.pet_fd)
        self.pet_fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self.tree.spare.discard(self.watcher)
        be_silent()
        self.attempt.shut_down(f"{NAME} was killed", now=boottime())


def be_silent() -> None:
    """The process that the caller started is gone. Close our copy of stderr, so that its reader sees the end."""
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null, 2)
    os.close(null)


class ForegroundWatcher(Watcher):
    """The process that the caller started. It watches the runner, passes signals on, and knows the exit code."""

    def __init__(self, spec: "dict[str, Any]", tree: Tree, runner: int, pet_fd: int) -> None:
        super().__init__(spec, tree, runner, pet_fd, kernel.start_ticks(runner))
        self.end: dict[str, Any] = {}  # how the command ended; the runner says this before it reports to the ledger
        self.ended_by = 0  # the last signal for the command: if the command was not started, it has ended the attempt
        self.leaves = False  # a signal came when only the report was missing
        self._signals: list[int] = []

    def exit_code(self) -> "int | None":
        """The command's exit code as in a shell; None if the command was not started."""
        code = self.end.get("exit_code")
        if isinstance(code, int):
            return code if code >= 0 else BY_SIGNAL - code
        return BY_SIGNAL + kernel.SIGKILL if self.gone and self.petted and not self.said_bye else None

    def _take_signals(self) -> int:
        wake_fd, wake = os.pipe()
        os.set_blocking(wake_fd, False)
        os.set_blocking(wake, False)
        _signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        _signal.signal(kernel.SIGCHLD, lambda _number, _frame: None)
        for number in PASSED_ON:
            if number not in self.spec["ignored"]:
                _signal.signal(number, lambda number, _frame: self._signals.append(number))
        return wake_fd

    def leave(self) -> None:
        """The caller waits on: signals end this process, as before the grant."""
        _signal.set_wakeup_fd(-1)
        for number in (kernel.SIGCHLD, *PASSED_ON):
            if number not in self.spec["ignored"]:
                _signal.signal(number, _signal.SIG_DFL)
        for number in self._signals:  # they came after the last look
            os.kill(os.getpid(), number)

    def _woken(self, fd: int) -> None:
        kernel.drain(fd)
        while self._signals:
            self._pass_on(self._signals.pop(0))

    def _pass_on(self, number: int) -> None:
        self._read()  # the command may have started or ended just now
        self.ended_by = number
        if self.end:
            self.leaves = True  # the command has ended, and its pid may be another process's: the caller need not wait
        elif not self.petted:
            self._signal_runner(SIGTERM)  # the runner gives the attempt back, and exits
        elif number not in FROM_TERMINAL or not _in_foreground():
            self._signal_command(number)

    def _signal_command(self, number: int) -> None:
        try:
            os.kill(self.program, number)
        except ProcessLookupError:
            return  # the command has ended

    def _may_leave(self) -> bool:
        return self.said_bye or self.leaves

    def _heard_end(self, text: bytes) -> None:
        self.said = self.end = decode(text.decode())

    def _open_facts(self) -> Facts:
        return Untold("")

    def _facts(self) -> "list[dict[str, Any]]":
        return []

    def _has_children(self) -> bool:
        return False  # the caller's process may have had children of its own before it became this one

    def _see_off(self) -> None:
        """The runner has said "bye" and will exit soon. Any other process of the command
        is then a descendant of ours.
        """
        if not self.said_bye:
            return  # the runner goes on without us until the end is reported
        limit = boottime() + BYE_S
        while not self.gone and boottime() < limit:
            select.poll().poll(int(LOOK_FOR_EXIT_S * 1000))
            self._reap()
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        super()._see_off()


def _in_foreground() -> bool:
    """True if the terminal sends its signals to our process group."""
    try:
        fd = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False  # no terminal, as under cron
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(fd)


def _has_children() -> bool:
    """True if the caller's process had children before it became this one (a shell's, before its exec)."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def hold(spec: "dict[str, Any]") -> ForegroundWatcher:
    """Run the command of a granted attempt. Returns, after the command's end is reported,
    the watcher, which knows that end.
    """
    kernel.Complaints.name = NAME
    spec["ignored"] = ignored()
    spec["born_ticks"] = int(boottime() * os.sysconf("SC_CLK_TCK"))
    kernel.become_subreaper()
    had_children = _has_children()
    life_fd, its_life = os.pipe()
    its_pet, pet_fd = os.pipe()
    watcher = os.getpid()
    runner = os.fork()
    if runner == 0:
        os.close(its_life)
        os.close(its_pet)
        kernel.become_subreaper()  # a child does not inherit this
        try:
            ForegroundRunner(spec, "", watcher, life_fd, pet_fd).run()
        except BaseException:  # the watcher must see that this process ends
            import sys

            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    os.close(life_fd)
    os.close(pet_fd)
    tree = Tree(spec["nonce"], "", {watcher, runner}, spec["born_ticks"])
    if had_children:
        tree.shared.add(watcher)  # their orphans become our children: a subreaper cannot tell whose they were
    front = ForegroundWatcher(spec, tree, runner, its_pet)
    front.run()
    return front
