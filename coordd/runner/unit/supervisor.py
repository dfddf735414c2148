"""The supervisor: the main process of a unit, as root. Starts one program for a holder, and ends with it.

    coordd-run INSTANCE USER    USER: the daemon's; a holder that is neither this user nor root is not served

It does as little as possible, because it is root: it reads one request (request.py), looks up the user in root's file
(coordd/adapters/launch/allowed.py), sets the limits, forks, and becomes that user in the child before anything of the
request is used. Then it passes signals on. When the holder is gone, it kills every process of the program at once.
"""

import _socket
import os
import pwd
import select
import sys

from coordd.adapters.launch import allowed
from coordd.adapters.launch.cgroups import own_cgroup
from coordd.runner import kernel
from coordd.runner.program import be_the_program, fork_in
from coordd.runner.tree import cgroup_members, kill_cgroup, remove_cgroup
from coordd.runner.unit.program import STEP_S
from coordd.runner.unit.request import ADDRESS, MESSAGE_BYTES_MAX, REQUEST_BYTES_MAX, VERSION, Request, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# The program and all that it starts live in this cgroup below the unit's own.
PROGRAM = "program"

# `doctor` starts an instance of this name and a key: it shows that units can be started, and does nothing. Names of
# runs may begin with the same word.
PROBE = "probe"

FDS = 5  # the request, and the program's ends of the four pipes
SYSTEMCTL = "/usr/bin/systemctl"

CALL_AGAIN_MS = 1
KILL_AGAIN_S = 0.01
KILL_LIMIT_S = 30.0

# How often (seconds) the unit's watchdog hears that this process moves; WatchdogSec= of the unit is many times as long.
BEAT_S = 1.0


class RefusedRequestError(Exception):
    """The text says why."""


def main() -> None:
    """The whole life of the unit; never returns."""
    code = 1
    try:
        code = serve(*sys.argv[1:3])
    except BaseException:  # after any exception, this process must end: systemd then ends the unit
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def serve(instance: str, daemon_user: str) -> int:
    """Serve the holder that waits for this instance. Returns the exit code of the unit."""
    if os.geteuid() != 0:
        raise PermissionError("coordd-run is started by systemd, as root")
    name, _, key = instance.rpartition(".")
    if name == PROBE:
        return 0
    link = _call(key, allowed.account_of(daemon_user).pw_uid)
    if link is None:
        return 0  # the holder is gone, or waits no longer
    link.send(f"hello {VERSION} {os.environ.get('INVOCATION_ID', '-')}".encode())
    fds: list[int] = []
    try:
        fds = _receive(link)
        served = _Served(link, _read(fds[0]), fds[1:])
    except (RefusedRequestError, ValueError, OSError) as exc:
        link.send(f"refused {exc}".encode(errors="replace")[:MESSAGE_BYTES_MAX])
        kernel.complain(f"refused: {exc}")
        return 1
    finally:
        for fd in fds:
            os.close(fd)
    served.run()
    return 0


def _call(key: str, daemon_uid: int) -> "_socket.socket | None":
    """Call the holder; None if nobody listens. Raises PermissionError when somebody else does, TimeoutError when its
    queue of callers stays full.
    """
    link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    link.settimeout(STEP_S)
    try:
        _connect(link, ADDRESS + key.encode())
        if kernel.peer_uid(link) not in (0, daemon_uid):
            raise PermissionError(
                f"uid {kernel.peer_uid(link)} listens in place of the daemon's user (uid {daemon_uid})"
            )
    except ConnectionRefusedError:
        link.close()
        return None
    except OSError:
        link.close()
        raise
    return link


def _connect(link: _socket.socket, address: bytes) -> None:
    """Connect, even if others have filled the queue: every local user may call the holder, which sends them away."""
    limit = kernel.boottime() + STEP_S
    while True:
        try:
            link.connect(address)
        except BlockingIOError as exc:  # a full queue; the timeout of a socket does not wait for that
            if kernel.boottime() >= limit:
                raise TimeoutError("the holder has too many callers") from exc
            select.poll().poll(CALL_AGAIN_MS)
        else:
            return


def _receive(link: _socket.socket) -> "list[int]":
    """The descriptors of the request."""
    space = _socket.CMSG_LEN(FDS * 4)
    _, received, flags, _ = link.recvmsg(MESSAGE_BYTES_MAX, space, _socket.MSG_CMSG_CLOEXEC)
    fds = [
        int.from_bytes(data[place : place + 4], "little")
        for level, kind, data in received
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
        for place in range(0, len(data) - 3, 4)
    ]
    if len(fds) != FDS or flags & _socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        raise RefusedRequestError(f"expected {FDS} descriptors, found {len(fds)}")
    return fds


def _read(fd: int) -> Request:
    data = b""
    while part := os.read(fd, 1 << 20):
        data += part
        if len(data) > REQUEST_BYTES_MAX:
            raise RefusedRequestError(f"expected a request of at most {REQUEST_BYTES_MAX} bytes")
    return unpack(data)


class _Served:
    """One program and its holder."""

    def __init__(self, link: _socket.socket, request: Request, fds: "list[int]") -> None:
        """Start it; it waits for its leave. Raises RefusedRequestError, ValueError and OSError."""
        self.link = link
        self.pid = 0
        self._beaten_at = 0.0
        own = own_cgroup()
        if not own:
            raise RefusedRequestError("there is no cgroup of version 2 here in which its processes could be told apart")
        become = _become(link, request, own)
        self.cgroup = f"{own}/{PROGRAM}"
        self.wake_fd = kernel.take_signals(self._stop)
        parent = os.getpid()
        self.pid, in_cgroup = fork_in(self.cgroup)
        if self.pid == 0:
            ends = (fds[0], fds[1], fds[2], fds[3])
            be_the_program(request.argv, request.env, request.cwd, request.label, ends, parent, become)
        if not in_cgroup:
            os.kill(self.pid, kernel.SIGKILL)
            raise RefusedRequestError(f"its processes cannot be put into {self.cgroup}")
        # Whatever our umask is: the holder, another user, looks whether it is empty.
        os.chmod(self.cgroup, 0o755)  # noqa: S103 - as systemd makes the unit's own
        link.send(f"ready {self.pid} {self.cgroup}".encode())

    def run(self) -> None:
        """Until the holder is gone; then nothing of the program is left."""
        self.link.setblocking(False)
        poll = select.poll()
        poll.register(self.link.fileno(), select.POLLIN)
        poll.register(self.wake_fd, select.POLLIN)
        while True:
            self._beat()
            for fd, _ in poll.poll(int(BEAT_S * 1000)):
                if fd == self.wake_fd:
                    kernel.drain(fd)
                elif not self._obey():
                    self._end()
                    return
            self._reap()

    def _beat(self) -> None:
        """Tell systemd that we move. If somebody has stopped us, the unit's watchdog ends the unit, and all in it."""
        now, address = kernel.boottime(), os.environ.get("NOTIFY_SOCKET", "")
        if not address or now < self._beaten_at + BEAT_S:
            return
        self._beaten_at = now
        socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK)
        try:
            socket.sendto(b"WATCHDOG=1", "\0" + address[1:] if address[0] == "@" else address)
        except OSError:
            return  # systemd does not read now: the next beat counts as much
        finally:
            socket.close()

    def _obey(self) -> bool:
        """Pass a signal on; False when the holder is gone."""
        try:
            word = self.link.recv(MESSAGE_BYTES_MAX)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if word.isdigit():
            self._signal(int(word))
        return bool(word)

    def _stop(self) -> None:
        """Somebody stops the unit: the holder ends the program, in its own order, and reports."""
        self._tell(b"stopping")

    def _reap(self) -> None:
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.pid:
                    self._tell(b"exited %d" % os.waitstatus_to_exitcode(ended[1]))
        except ChildProcessError:
            return

    def _tell(self, text: bytes) -> None:
        try:
            self.link.send(text)
        except OSError:
            return  # it is gone, which the next look shows

    def _signal(self, number: int) -> None:
        if number == kernel.SIGKILL and kill_cgroup(self.cgroup):
            return
        for pid in cgroup_members(self.cgroup):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def _end(self) -> None:
        """The holder is gone: kill until nothing is left."""
        limit = kernel.boottime() + KILL_LIMIT_S
        self._signal(kernel.SIGKILL)
        while not remove_cgroup(self.cgroup, 0) and kernel.boottime() < limit:
            self._beat()
            self._reap()
            select.poll().poll(int(KILL_AGAIN_S * 1000))
            self._signal(kernel.SIGKILL)


def _become(link: _socket.socket, request: Request, own: str) -> "Callable[[], None]":
    """Decide about user and limits, and set the limits. Returns the call that makes a child that user."""
    holder_uid = kernel.peer_uid(link)
    asked = {name: value for name, value in request.limits.items() if value}
    if request.user:
        account, limits = allowed.decide(request.user, asked, allowed.read())
    else:
        account, limits = pwd.getpwuid(holder_uid), asked  # no more than the holder could do itself
    if limits:
        _limit(own.rpartition("/")[2], limits)
    groups = os.getgrouplist(account.pw_name, account.pw_gid)

    def become() -> None:
        os.setgroups(groups)
        os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
        os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
        if request.secrets:
            fd = os.open(
                allowed.SECRETS_PATH, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            with open(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(request.secrets)

    return become


def _limit(unit: str, limits: "dict[str, int]") -> None:
    """Set the limits of our own unit. Raises RefusedRequestError: without its limits the program does not run."""
    settings = [f"{allowed.LIMITS[name][0]}={value}" for name, value in limits.items()]
    memory = os.memfd_create("coordd-systemctl", os.MFD_CLOEXEC)
    pid = os.posix_spawn(
        SYSTEMCTL,
        [SYSTEMCTL, "set-property", "--runtime", unit, *settings],
        {"LANG": "C.UTF-8"},
        file_actions=[(os.POSIX_SPAWN_DUP2, memory, 1), (os.POSIX_SPAWN_DUP2, memory, 2)],
    )
    status = os.waitpid(pid, 0)[1]
    if status != 0:
        said = os.pread(memory, 1000, 0).decode(errors="replace")
        raise RefusedRequestError(f"its limits cannot be set ({', '.join(settings)}): {' '.join(said.split())}")
    os.close(memory)


if __name__ == "__main__":
    main()
