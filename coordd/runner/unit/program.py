"""The holder's side of a program in a unit: asks systemd for the unit, and its supervisor for the program.

The unit's start is only queued when systemctl returns, so nothing counts until the supervisor has called and said that
the program waits for its leave. The supervisor kills everything in the unit when the connection ends: with us.
"""

import _signal  # type: ignore[import-not-found]  # no stub; signal itself costs 3 ms
import _socket
import os
import select

from coordd.adapters.launch.allowed import LIMITS
from coordd.runner import kernel
from coordd.runner.kernel import boottime
from coordd.runner.program import Program
from coordd.runner.unit.request import ADDRESS, MESSAGE_BYTES_MAX, VERSION, Request, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from coordd.runner.loop import Loop

# The unit must be there, and its program ready, within this time (seconds); then the attempt is given back.
START_S = 10.0

# How long (seconds) each step of the conversation with the supervisor may take.
STEP_S = 5.0

LOOK_S = 0.05
COMPLAINT_BYTES_MAX = 2000


class UnitProgram(Program):
    """A program in the unit ``spec["unit"]``; in place of a child of the runner."""

    def __init__(
        self,
        spec: "dict[str, Any]",
        env: "dict[str, str]",
        loop: "Loop",
        placed: "Callable[[str], None]",
        stopped: "Callable[[], None]",
    ) -> None:
        """Ask for the unit. ``placed`` is called with the program's cgroup once it waits there; ``stopped`` when
        somebody stops the unit.
        """
        self._theirs = self._make_pipes()
        self.in_cgroup = False
        self.pid = 0
        self.cgroup = ""
        self.name: str = spec["unit"]["name"]
        self.problem = ""  # why the program will never be ready
        self._loop = loop
        self._placed = placed
        self._stopped = stopped
        self._link: _socket.socket | None = None
        unit = spec["unit"]
        self._request = Request(
            spec["argv"],
            env,
            spec.get("cwd", ""),
            user=unit["user"],
            label=kernel.label_of(spec["nonce"]),
            limits={name: unit[name] for name in LIMITS},
            secrets=spec.get("unit_secrets", ""),
        )
        self._listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_NONBLOCK)
        self._listener.bind(ADDRESS + unit["key"].encode())
        self._listener.listen(4)
        self._listening = True
        loop.on(self._listener.fileno(), self._called_by)
        self._complaints = os.memfd_create("coordd-systemctl", os.MFD_CLOEXEC)
        self._starter = os.posix_spawn(
            unit["start"][0],
            unit["start"],
            {"LANG": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            file_actions=[(os.POSIX_SPAWN_DUP2, self._complaints, 1), (os.POSIX_SPAWN_DUP2, self._complaints, 2)],
            setsigmask=(),
            setsigdef=(_signal.SIGTERM, _signal.SIGINT, _signal.SIGCHLD, _signal.SIGHUP),
        )

    def prepare(self, until: float) -> str:
        """Wait until the program waits for its leave in the unit, at the longest until that time on CLOCK_BOOTTIME."""
        until = min(until, boottime() + START_S)
        while not self.problem and not self.in_cgroup:
            left_s = until - boottime()
            if left_s <= 0:
                self._give_up(f"its unit {self.name} is not there in time")
                break
            poll = select.poll()
            poll.register(self._listener.fileno(), select.POLLIN)
            if poll.poll(int(min(left_s, LOOK_S) * 1000) + 1):
                self._called_by(self._listener.fileno())
            else:
                self._look_after_starter()
        return self.problem

    def signal(self, number: int) -> None:
        """Have the supervisor signal every process of the program."""
        if self._link is not None:
            try:
                self._link.send(b"%d" % number)
            except OSError:
                return  # it is gone, and with it the unit; or its queue is full, and the signal comes again

    def reaped(self, pid: int, status: int) -> None:
        """As in Program; the only child is the program that asks for the unit."""
        if pid == self._starter and status != 0 and not self.in_cgroup:
            said = os.pread(self._complaints, COMPLAINT_BYTES_MAX, 0).decode(errors="replace")
            self._give_up(f"its unit {self.name} cannot be started: {' '.join(said.split())}")

    # ---- steps

    def _look_after_starter(self) -> None:
        try:
            pid, status = os.waitpid(self._starter, os.WNOHANG)
        except ChildProcessError:
            return  # it has ended, and ``reaped`` has been told
        if pid:
            self.reaped(pid, status)

    def _called_by(self, _fd: int) -> None:
        """Answer a caller. Only root is the supervisor; any other user that knows the address is not answered."""
        try:
            fd, _ = self._listener._accept()  # type: ignore[attr-defined]  # what socket.socket.accept calls
        except OSError:
            return
        link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, fd)
        if kernel.peer_uid(link) != 0:
            link.close()
            return
        try:
            link.settimeout(STEP_S)
            said = self._ask(link)
        except (OSError, ValueError) as exc:
            said = [f"its unit {self.name} does not answer as expected: {exc}"]
        if len(said) != 3:
            link.close()
            self._give_up(said[0])
            return
        self.pid, self.cgroup = int(said[1]), said[2]
        self._close_ours()
        link.setblocking(False)
        self._link = link
        self._loop.on(link.fileno(), self._heard)
        self.in_cgroup = True
        self._placed(self.cgroup)

    def _ask(self, link: _socket.socket) -> "list[str]":
        """["ready", pid, cgroup], or [why not]. Raises OSError and ValueError."""
        hello = link.recv(MESSAGE_BYTES_MAX).decode(errors="replace").split()
        if hello[:2] != ["hello", VERSION]:
            raise ValueError(f"expected a supervisor of version {VERSION}, found {hello}; restart the daemon")
        memory = os.memfd_create("coordd-request", os.MFD_CLOEXEC)
        try:
            with open(memory, "wb", closefd=False) as file:
                file.write(pack(self._request))
            os.lseek(memory, 0, os.SEEK_SET)
            fds = b"".join([fd.to_bytes(4, "little") for fd in (memory, *self._theirs)])
            link.sendmsg([b"run"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
        finally:
            os.close(memory)
        word, _, rest = link.recv(MESSAGE_BYTES_MAX).decode(errors="replace").partition(" ")
        if word == "ready":
            pid, _, cgroup = rest.partition(" ")
            if pid.isdecimal() and cgroup.startswith("/"):
                return [word, pid, cgroup]
        if word == "refused":
            return [f"its unit {self.name} refuses: {rest}"]
        raise ValueError(f"expected ready or refused, found {word!r}")

    def _heard(self, fd: int) -> None:
        """How the program ended, or that the unit is being stopped, or that the supervisor is gone."""
        assert self._link is not None, "the loop looks at it"
        try:
            words = self._link.recv(MESSAGE_BYTES_MAX).split()
        except BlockingIOError:
            return
        except OSError:
            words = []
        if words[:1] == [b"exited"]:
            self.exit_code = int(words[1])
        elif words[:1] == [b"stopping"]:
            self._stopped()
        elif not words:
            self._loop.off(fd)
            self._link.close()
            self._link = None
            self.problem = f"its unit {self.name} has ended"
            if self.exit_code is None:
                self.exit_code = -kernel.SIGKILL  # systemd kills what is left, and the cgroup tells when nothing is

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        self._close_ours()

    def _close_ours(self) -> None:
        """A supervisor that calls later finds nobody."""
        if not self._listening:
            return
        self._listening = False
        self._loop.off(self._listener.fileno())
        self._listener.close()
        for fd in self._theirs:
            os.close(fd)
