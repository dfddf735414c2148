"""The warm parent: has the runner's code loaded, and forks the watcher of an attempt when the daemon asks.

So an attempt starts without the start of an interpreter and without imports. It is a shortcut and nothing more: if it
is gone, slow or of another version, the daemon starts the attempt as a program of its own. Its side of this is
coordd/adapters/launch/warm.py.

It has one thread, opens no ledger, no lock and no file, and holds no descriptor but its own three, the daemon's socket
and a pipe that wakes it. A child inherits nothing else. A request is a datagram with descriptors:

    daemon   start NUMBER     spec, runner.log, permit, perhaps the back-channel's listener
    warm     hello PROTOCOL VERSION    once
             started NUMBER PID
             refused NUMBER REASON
             exited PID STATUS         of each child, as waitpid has it

**The permit is what makes a start single.** It is an eventfd with the value 1: a read takes it, and the kernel gives it
to one reader. The child goes on only if it took the permit. The daemon starts the attempt in the other way only if it
took the permit itself. (The ledger's gate does not prevent a second start: it repeats its answer to the same grant.)
"""

import _signal  # type: ignore[import-not-found]  # no stub; signal itself costs 3 ms
import _socket
import gc
import os
import select
import sys

from coordd import __version__
from coordd.runner import kernel
from coordd.runner.__main__ import FDS_MAX, boot, import_ledger, live, read_spec
from coordd.runner.warm.command_line import CommandLine

# Number of the protocol above. A daemon does not use a warm parent that speaks another one.
PROTOCOL = 1

# The daemon's socket, in the warm parent.
SOCKET_FD = 3

# Descriptors of a request: spec, runner.log, permit, listener.
FDS_OF_REQUEST_MIN = 3
FDS_OF_REQUEST_MAX = 4
REQUEST_BYTES_MAX = 256
FD_BYTES = 4

# Modules that a runner or watcher loads later. Loaded here, they cost an attempt nothing, and they have the same
# version as the rest even if the package is replaced meanwhile.
LATER = (
    "coordd.adapters.lean_json",
    "coordd.core.ledger.words",
    "coordd.runner.channel",
    "coordd.runner.facts",
    "coordd.runner.log",
    "coordd.runner.output",
    "coordd.runner.watcher",
)


def main() -> None:
    """The whole life of a warm parent; its argument is the scheme of the ledger's URL. Returns when the daemon goes."""
    os.chdir("/")
    os.closerange(SOCKET_FD + 1, FDS_MAX)
    kernel.die_with_parent(kernel.SIGKILL)  # a stopped one would not see the end of its socket
    kernel.take_name(kernel.WARM_NAME)
    import_ledger(sys.argv[2])
    for module in LATER:
        __import__(module)
    try:
        WarmParent(_socket.socket(fileno=SOCKET_FD), CommandLine()).run()
    except (OSError, ValueError) as exc:
        kernel.complain(f"the warm parent ends: {exc}")  # the daemon starts another one


class WarmParent:
    """Forks on request; tells of the ends of its children."""

    def __init__(self, daemon: "_socket.socket", line: CommandLine) -> None:
        self.daemon = daemon
        self.line = line
        self.words = [*sys.orig_argv[: sys.orig_argv.index("-c") + 1], boot(sys.path[0])]
        self.wake_fd, self._wake = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._wake, False)
        _signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, lambda _number, _frame: None)
        line.show([*sys.orig_argv[:4], "coordd-warm", sys.argv[2]])

    def run(self) -> None:
        """Serve until the daemon's end of the socket is closed."""
        poll = select.poll()
        poll.register(self.daemon.fileno(), select.POLLIN)
        poll.register(self.wake_fd, select.POLLIN)
        gc.collect()
        gc.freeze()  # no collection of a child touches, and so copies, what all children share
        self._say(f"hello {PROTOCOL} {__version__}")
        while True:
            for fd, _ in poll.poll():
                if fd == self.wake_fd:
                    kernel.drain(fd)
                    self._reap()
                elif not self._serve():
                    return

    def _serve(self) -> bool:
        """Take one request; False at the end of the socket."""
        size = _socket.CMSG_SPACE(FDS_OF_REQUEST_MAX * FD_BYTES)
        data, ancillary, flags, _ = self.daemon.recvmsg(REQUEST_BYTES_MAX, size, _socket.MSG_CMSG_CLOEXEC)
        fds = [
            int.from_bytes(part[at : at + FD_BYTES], sys.byteorder)
            for _level, _kind, part in ancillary
            for at in range(0, len(part) - FD_BYTES + 1, FD_BYTES)
        ]
        if not data:
            return False
        try:
            number = int(data.split()[1])
            if flags & _socket.MSG_CTRUNC or len(fds) < FDS_OF_REQUEST_MIN:
                self._say(f"refused {number} no descriptor is left")
                return True
            try:
                pid = os.fork()
            except OSError as exc:
                self._say(f"refused {number} it cannot fork: {exc.strerror}")
                return True
            if pid == 0:
                self._be_an_attempt(fds)
            self._say(f"started {number} {pid}")
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _say(self, text: str) -> None:
        """It waits if the daemon is stopped, which asks nothing meanwhile."""
        self.daemon.send(text.encode())

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._say(f"exited {pid} {status}")

    def _be_an_attempt(self, fds: "list[int]") -> None:
        """In the child. Never returns."""
        code = 1
        try:
            try:
                self._become_as_started(fds)
            except OSError as exc:
                kernel.complain(f"a runner of the warm parent cannot start: {exc}")
                return  # it ends here: the daemon ends what is left of the attempt, which is nothing
            if _take(fds[2]):
                spec = read_spec()
                self.line.show([*self.words, "coordd-runner", spec["run"], "attempt", str(spec["attempt"])])
                live(spec)
                code = 0
        except BaseException:  # after any exception, the daemon must see this process end
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def _become_as_started(self, fds: "list[int]") -> None:
        """Be what a new program would be: a session, standard files and signals of its own, nothing of the parent's."""
        os.close(self.daemon.detach())
        os.setsid()
        _signal.set_wakeup_fd(-1)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        spec, complaints = fds[:2]
        for fd, target in ((spec, 0), (complaints, 1), (complaints, 2), *[(fd, SOCKET_FD) for fd in fds[3:]]):
            os.dup2(fd, target)


def _take(permit: int) -> bool:
    """Take the permit; False if the daemon has taken it: then it starts the attempt without us."""
    try:
        return len(os.read(permit, 8)) == 8
    except BlockingIOError:
        return False
