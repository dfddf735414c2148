"""A command that keeps its caller's terminal, under the same runner and watcher as every other program.

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
from coordd.runner.program import GO, Program, execute
from coordd.runner.tree import Tree
from coordd.runner.watcher import BYE_S, Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "coordd exec"

# What the caller sends us is meant for the command. The terminal sends the first two to the command itself.
FROM_TERMINAL = (_signal.SIGINT, _signal.SIGQUIT)
PASSED_ON = (*FROM_TERMINAL, _signal.SIGHUP, SIGTERM, _signal.SIGUSR1, _signal.SIGUSR2, _signal.SIGALRM)

# Python ignores these two at its start: the caller did not.
PYTHONS = (_signal.SIGPIPE, _signal.SIGXFSZ)

# Exit codes as a shell has them: the command does not exist, cannot be executed, was ended by signal N.
NOT_FOUND = 127
NOT_EXECUTABLE = 126
BY_SIGNAL = 128

# How often (seconds) it is looked whether the runner has exited, once it said so.
LOOK_FOR_EXIT_S = 0.002


def ignored() -> "tuple[int, ...]":
    """The signals that the caller wants to be ignored (nohup)."""
    numbers = [number for number in range(1, 32) if _signal.getsignal(number) == _signal.SIG_IGN]
    return tuple([number for number in numbers if number not in PYTHONS])


class ForegroundProgram(Program):
    """The command: standard streams, directory and terminal are ours."""

    def __init__(
        self, argv: "list[str]", env: "dict[str, str]", label: int, ignored_signals: "tuple[int, ...]"
    ) -> None:
        """Fork it. It waits."""
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
        """0: its session is the caller's, and has other processes."""
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
    """In the child: prepare, wait for the byte, become the command. Never returns."""
    try:
        kernel.die_with_parent(kernel.SIGKILL)
        kernel.carry_label(label)  # if it is refused, the other methods must be enough
        if os.getppid() != parent:
            os._exit(NOT_EXECUTABLE)
        kernel.reset_signals()
        for number in ignored_signals:
            _signal.signal(number, _signal.SIG_IGN)
        if os.read(held, 1) != GO:
            os._exit(NOT_EXECUTABLE)
        execute(argv, env)
    except OSError as exc:
        os.write(status, f"cannot execute {argv[0]}: {exc.strerror}".encode())
    finally:
        os._exit(NOT_FOUND)


class Untold(Facts):
    """There is no directory for facts: the daemon knows the run from the ledger, the watcher from its pipe."""

    def append(self, fact: str, *, sync: bool = False, **fields: object) -> bool:
        """Nothing is written."""
        return True

    def catch_up(self, *, sync: bool = False) -> bool:
        """Nothing is missing."""
        return True

    def is_there(self) -> bool:
        """Nobody looks for it."""
        return True


class Unlogged:
    """In the place of a log: the output goes where the caller wants it."""

    failure = ""

    def lines(self) -> "list[str]":
        """None are kept."""
        return []


class Untouched(Output):
    """The output passes us by."""

    def __init__(self) -> None:
        self.log = Unlogged()  # type: ignore[assignment]  # the part of a log that a runner reads
        self.application_id = ""

    def finish(self) -> None:
        """Nothing is left to read."""

    def is_final(self) -> bool:
        """No pattern was searched for."""
        return False

    def telling_line(self) -> str:
        """The caller has seen it."""
        return ""


class ForegroundRunner(Runner):
    """Holds the lease of a command in the foreground."""

    def _fork_program(self) -> Program:
        spec = self.spec
        label = kernel.label_of(spec["nonce"])
        program = ForegroundProgram(spec["argv"], self._environment(), label, spec["ignored"])
        # After the command has our session: signals to its process group and hang-ups of its terminal are not for us.
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1):  # the reader of a pipe sees its end with the command, not with us
            os.dup2(null, fd)
        os.close(null)
        os.chdir("/")
        return program

    def _introduce(self) -> None:
        self.facts = Untold("")

    def _listen(self) -> None:
        """Nobody commands us but the ledger."""

    def _can_follow(self) -> bool:
        return True

    def _follow(self) -> Output:
        return Untouched()

    def _watcher_died(self, fd: int) -> None:
        """The process that the caller started was killed: the command must not run unseen."""
        self.loop.off(fd)
        os.close(fd)
        os.close(self.pet_fd)
        self.pet_fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self.tree.spare.discard(self.watcher)
        be_silent()
        self.attempt.shut_down(f"{NAME} was killed", now=boottime())


def be_silent() -> None:
    """The process that the caller started is gone: the reader of its messages must see the end of them."""
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null, 2)
    os.close(null)


class ForegroundWatcher(Watcher):
    """What the caller started: it watches the runner, passes signals on, and knows the exit code."""

    def __init__(self, spec: "dict[str, Any]", tree: Tree, runner: int, pet_fd: int) -> None:
        super().__init__(spec, tree, runner, pet_fd, kernel.start_ticks(runner))
        self.end: dict[str, Any] = {}  # how it ended, as the runner said before it reported
        self._signals: list[int] = []

    def exit_code(self) -> "int | None":
        """The command's, as a shell has it; None if it was not started."""
        code = self.end.get("exit_code")
        if isinstance(code, int):
            if (
                str(self.end.get("reason", "")).startswith("cannot execute")
                and "No such file" not in self.end["reason"]
            ):
                return NOT_EXECUTABLE
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

    def _woken(self, fd: int) -> None:
        kernel.drain(fd)
        while self._signals:
            self._pass_on(self._signals.pop(0))

    def _pass_on(self, number: int) -> None:
        if number in FROM_TERMINAL and _in_foreground():
            return
        self._read()  # it may have been started just now
        if not self.petted:
            self._signal_runner(SIGTERM)  # it gives the attempt back, and exits
            return
        try:
            os.kill(self.program, number)
        except ProcessLookupError:
            return  # it has ended

    def _heard_end(self, text: bytes) -> None:
        self.said = self.end = decode(text.decode())

    def _open_facts(self) -> Facts:
        return Untold("")

    def _facts(self) -> "list[dict[str, Any]]":
        return []

    def _see_off(self) -> None:
        """The runner said bye. It is gone soon; everything else of the command descends from us, if it is there."""
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
    """True if our process group is the one that a terminal sends its signals to."""
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


def hold(spec: "dict[str, Any]") -> ForegroundWatcher:
    """Run the command of a granted attempt until it has ended and is reported; returns what is known of its end."""
    kernel.Complaints.name = NAME
    spec["ignored"] = ignored()
    spec["born_ticks"] = int(boottime() * os.sysconf("SC_CLK_TCK"))
    kernel.become_subreaper()
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
        except BaseException:  # the watcher must see this process end
            import sys

            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    os.close(life_fd)
    os.close(pet_fd)
    front = ForegroundWatcher(spec, Tree(spec["nonce"], "", {watcher, runner}, spec["born_ticks"]), runner, its_pet)
    front.run()
    return front
