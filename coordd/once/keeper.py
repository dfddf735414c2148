"""The keeper: holds the lease of a run whose body is code of the process that started it (coordd.single).

    the process with the body: watches the keeper, as a watcher does
     └── the keeper, in a session of its own: the runner, without a program to start

Code that hangs, or that holds Python's lock, cannot stop the keeper: the keeper still renews the lease, and kills the
code's process when the lease ends. The two talk over the pipes of a runner and its watcher. The keeper says
"pet DEADLINE …", "go", "lost REASON", "end {…}", "told", "bye". The body's process says "end CODE REASON".
"""

import _signal  # type: ignore[import-not-found]  # no stub; signal itself costs 3 ms
import os

from coordd.once.foreground import HeldRunner, Untouched, be_silent
from coordd.runner import kernel
from coordd.runner.kernel import SIGKILL, boottime
from coordd.runner.output import Output
from coordd.runner.program import Program
from coordd.runner.tree import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Our ends of the pipes: we read what the body's process says, and write what it hears.
HEARS_FD = 3
SAYS_FD = 4

LINE_BYTES_MAX = 4096


class Body(Program):
    """The body in the other process, with the interface of a program."""

    def __init__(self, owner: int) -> None:
        """``owner``: the pid of the body's process, which is our parent."""
        self.exit_code: int | None = None
        self.in_cgroup = False
        self.pid = owner
        self.owner_fd = os.pidfd_open(owner)
        self.status_fd, self._release = os.pipe()
        os.set_blocking(self.status_fd, False)

    @property
    def session(self) -> int:
        """0: the session is not ours."""
        return 0

    def release(self, at: float) -> bool:
        """Let the body begin ``at`` that instant, or now. Returns False if its process is gone."""
        kernel.wait_until(at)
        self.discard()  # when this pipe is closed, the body counts as executed
        try:
            os.write(SAYS_FD, b"go\n")
        except OSError:
            return False
        return True


class OneProcess(Tree):
    """A tree of one process: the body's."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.cgroup = ""
        self.session = 0
        self.spare = set()

    def members(self) -> "list[int]":
        """The body's process, until the body has ended."""
        return [self.body.pid] if self.body.exit_code is None else []

    def populated(self) -> bool:
        """True until the body has ended."""
        return self.body.exit_code is None

    def signal(self, number: int) -> int:
        """KILL goes to the whole process. For any other signal the body gets a message,
        which it may be able to read.
        """
        if self.body.exit_code is not None:
            return 0
        try:
            if number == SIGKILL:
                _signal.pidfd_send_signal(self.body.owner_fd, SIGKILL)
            else:
                os.write(SAYS_FD, b"lost\n")
        except OSError:
            return 0  # the process is gone (its descriptor shows that), or it does not read
        return 1


class Told(Untouched):
    """Stands in for the output of a program: it says why the body failed."""

    def __init__(self, keeper: "Keeper") -> None:
        super().__init__()
        self._keeper = keeper

    def verdict(self) -> "tuple[bool, bool, str]":
        """The reason for the failure that the body's process has sent."""
        return False, False, self._keeper.reason


class Keeper(HeldRunner):
    """The process that holds the lease of the body."""

    def __init__(self, spec: "dict[str, Any]") -> None:
        self.reason = ""
        self._rest = b""
        self._lost = False
        super().__init__(spec, "", spec["owner"], HEARS_FD, SAYS_FD)
        assert isinstance(self.program, Body)
        self.body = self.program
        self.tree = OneProcess(self.body)
        self.loop.on(self.body.owner_fd, self._owner_died)

    def _fork_program(self) -> Program:
        self.guard_address = self.spec["guard"]
        return Body(self.spec["owner"])

    def _follow(self) -> Output:
        return Told(self)

    def _owner_died(self, fd: int) -> None:
        """The body's process has ended without a message: nothing of the body is left."""
        self.loop.off(fd)
        self.loop.off(HEARS_FD)
        be_silent()
        if self.body.exit_code is None:
            self.attempt.shut_down("its process has ended", now=boottime())
            self.body.exit_code = -SIGKILL

    def _watcher_died(self, fd: int) -> None:
        """The body's process has sent a message, or has closed its end of the pipe."""
        try:
            data = os.read(fd, LINE_BYTES_MAX)
        except OSError:
            return
        line, newline, _ = (self._rest + data).partition(b"\n")
        if not data:
            self.loop.off(fd)  # it gave up before the body began, or it died (its descriptor shows that)
            self.attempt.shut_down("it was given up before it began", now=boottime())
        elif not newline:
            self._rest = line
        elif self.body.exit_code is None:
            _, code, reason = line.decode(errors="replace").split(" ", 2)
            self.reason = reason
            self.body.exit_code = int(code)


def main() -> None:
    """The whole life of a keeper; never returns. The spec comes from stdin."""
    import sys

    from coordd.runner.__main__ import read_spec

    code = 1
    try:
        spec = read_spec()
        os.dup2(0, 1)  # /dev/null: when our parent ends, the reader of its output must see the end of the output
        kernel.Complaints.name = "coordd.single"
        os.chdir("/")
        if os.getppid() == spec["owner"]:  # otherwise the parent has ended already
            Keeper(spec).run()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)
