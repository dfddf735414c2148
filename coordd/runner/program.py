"""The program: forked early, held back by a pipe, executed when the gate has opened."""

import os
import time

from coordd.runner import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# What starts the program: this byte, and the instant (CLOCK_BOOTTIME) before which it does not start. Anything else,
# especially the end of the pipe, means: do not start.
GO = b"g"
GO_BYTES_MAX = 64
CALLED_BYTES_MAX = 64

# Exit codes as in a shell: the command does not exist, the command cannot be executed.
NOT_FOUND = 127
NOT_EXECUTABLE = 126


class Program:
    """A child of the runner that will execute, or has executed, the program."""

    _called = -1  # where the child says when it calls execve

    def __init__(self, argv: "list[str]", env: "dict[str, str]", cwd: str, cgroup: str, label: int) -> None:
        """Fork it. It leads its own session, has the ``label`` (``kernel.label_of``), and waits.

        It starts in ``cgroup`` if the kernel permits; ``in_cgroup`` says whether it did.
        """
        theirs = self._make_pipes()
        parent = os.getpid()
        self.pid, self.in_cgroup = fork_in(cgroup)
        if self.pid == 0:
            os.close(self._release)
            be_the_program(argv, env, cwd, label, theirs, parent)
        for fd in theirs:
            os.close(fd)

    def _make_pipes(self) -> "tuple[int, int, int, int]":
        """Returns the program's ends: the leave to execute, its failure, its output, when it called execve."""
        self.exit_code: int | None = None
        held, self._release = os.pipe()
        self.status_fd, status = os.pipe()
        self.output_fd, output = os.pipe()
        self._called, called = os.pipe()
        os.set_blocking(self.output_fd, False)
        os.set_blocking(self.status_fd, False)
        return held, status, output, called

    def unexecuted_code(self) -> int:
        """The exit code of an attempt whose program could not be executed, whatever ended its process."""
        return NOT_EXECUTABLE if self.exit_code == NOT_EXECUTABLE else NOT_FOUND

    def prepare(self, _until: float) -> str:
        """Wait until it can be executed at once. Why it never can be; "" if it can."""
        return ""

    def signal(self, number: int) -> None:
        """Signal what only the program's unit can reach: without a unit, nothing."""

    def reaped(self, pid: int, status: int) -> None:
        """A child of the runner has ended, with this status (as from waitpid)."""
        if pid == self.pid:
            self.exit_code = os.waitstatus_to_exitcode(status)

    @property
    def session(self) -> int:
        """The session that belongs to the program alone, which leads it."""
        return self.pid

    def release(self, at: float) -> bool:
        """Let it execute ``at`` that instant (CLOCK_BOOTTIME), or now; False if it is gone."""
        try:
            os.write(self._release, GO + repr(at).encode())
            return True
        except BrokenPipeError:
            return False
        finally:
            os.close(self._release)
            self._release = -1

    def discard(self) -> None:
        """It will never be executed."""
        if self._release >= 0:
            os.close(self._release)
            self._release = -1

    def called_at(self) -> float:
        """When it called execve (Unix seconds); 0.0 if it cannot be told. To be asked once, after ``failure``."""
        if self._called < 0:
            return 0.0
        text = os.read(self._called, CALLED_BYTES_MAX)
        os.close(self._called)
        return float(text or b"0")

    def failure(self) -> "str | None":
        """Why it could not be executed; "" once it has been; None while unknown."""
        try:
            return os.read(self.status_fd, 4096).decode(errors="replace")
        except OSError:
            return None  # nothing yet; if it cannot be read now, it is read again


def environment_of(spec: "dict[str, Any]", guard_address: str) -> "dict[str, str]":
    """The program's environment: the job's, and what finds its processes, its guard and its launcher."""
    env = {**spec["env"], "COORDD_NONCE": spec["nonce"], "COORDD_GUARD": guard_address}
    if spec.get("launcher_port"):
        os.set_inheritable(spec["launcher_fd"], False)
        env["_SPARK_LAUNCHER_PORT"] = str(spec["launcher_port"])
        env["_SPARK_LAUNCHER_SECRET"] = spec["launcher_secret"]
    return env


def fork_in(cgroup: str) -> "tuple[int, bool]":
    """Fork; (pid, whether the child is in the cgroup, which is made). "": in ours."""
    pid = -1
    if cgroup:
        try:
            os.mkdir(cgroup, 0o755)
            pid = kernel.fork_into(cgroup)
        except OSError:
            pid = -1  # no cgroup for us: descent, session and nonce must be enough
    if pid >= 0:
        return pid, True
    pid = os.fork()
    return pid, pid > 0 and bool(cgroup) and _move_into(cgroup, pid)


def _move_into(cgroup: str, pid: int) -> bool:
    """If clone3 is forbidden (a unit with RestrictNamespaces), move the child, which still waits."""
    try:
        with open(f"{cgroup}/cgroup.procs", "wb", buffering=0) as file:
            file.write(str(pid).encode())
        return True
    except OSError:
        try:
            os.rmdir(cgroup)
        except OSError:
            return False  # it was never created
        return False


def be_the_program(
    argv: "list[str]",
    env: "dict[str, str]",
    cwd: str,
    label: int,
    fds: "tuple[int, int, int, int]",
    parent: int,
    become: "Callable[[], None] | None" = None,
) -> None:
    """In the child: ``become`` another user, prepare, wait for the byte, become the program. Never returns."""
    held, status, output, called = fds
    what = "become its user"
    try:
        os.setsid()
        if become is not None:
            become()
        what = "prepare"
        kernel.die_with_parent(kernel.SIGKILL)  # after the change of user, which would undo it
        kernel.carry_label(label)  # if it is refused, the other methods must be enough
        if os.getppid() != parent:
            os._exit(NOT_EXECUTABLE)
        kernel.reset_signals()
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(fd, target, inheritable=True)
        what = f"enter {cwd}"
        if cwd:
            os.chdir(cwd)
        if not has_leave(held):
            os._exit(NOT_EXECUTABLE)
        what = f"execute {argv[0]}"
        os.write(called, repr(time.time()).encode())
        execute(argv, env)
    except (OSError, ValueError) as exc:
        say_why_not(status, what, exc)
    finally:
        os._exit(NOT_FOUND)


def say_why_not(status: int, what: str, exc: "OSError | ValueError") -> None:
    """In the child: report the failure, and end. A ValueError: an argument or a variable that no program can have."""
    why = exc.strerror if isinstance(exc, OSError) else str(exc)
    os.write(status, f"cannot {what}: {why}".encode(errors="replace"))
    os._exit(NOT_FOUND if isinstance(exc, FileNotFoundError) else NOT_EXECUTABLE)


def has_leave(held: int) -> bool:
    """Wait for the leave to execute, and for its instant; False if it will never come."""
    text = os.read(held, GO_BYTES_MAX)
    if text[:1] != GO:
        return False
    kernel.wait_until(float(text[1:]))
    return True


def execute(argv: "list[str]", env: "dict[str, str]") -> None:
    """os.execvpe, without its imports."""
    if "/" in argv[0]:
        os.execve(argv[0], argv, env)
    failed: OSError = FileNotFoundError(2, "No such file or directory")
    for directory in env.get("PATH", os.defpath).split(":"):
        try:
            os.execve(f"{directory}/{argv[0]}", argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as exc:
            failed = exc
    raise failed
