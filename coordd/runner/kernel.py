"""Kernel interfaces beyond os: subreaper, death signal, clone into a cgroup, the identity of a process."""

import _ctypes  # ctypes itself costs 3 ms of every start
import _signal  # type: ignore[import-not-found]  # no stub; signal itself costs 3 ms
import _socket
import errno
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_libc = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None is this process itself
_prctl = _ctypes.dlsym(_libc, "prctl")
_syscall = _ctypes.dlsym(_libc, "syscall")
_setrlimit = _ctypes.dlsym(_libc, "setrlimit")

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
SYS_CLONE3 = 435  # the same number on every architecture
CLONE_INTO_CGROUP = 0x200000000
SIGTERM: int = _signal.SIGTERM
SIGKILL: int = _signal.SIGKILL
SIGCHLD: int = _signal.SIGCHLD

# At a restart of the daemon, systemd logs two or three warnings for each remaining process of the unit. Ours remain on
# purpose. systemd ignores names in parentheses (its own helpers have them). At most 15 bytes.
RUNNER_NAME = "(coordd-runner)"
WATCHER_NAME = "(coordd-watch)"
WARM_NAME = "(coordd-warm)"

# A limit that Linux shows and inherits, and has not used since 2.4.25: see ``label_of``.
RLIMIT_LOCKS = 10

# A sleep ends late by up to this (seconds) on an idle machine.
SPIN_S = 0.0008

# If reading /proc fails with one of these, the process is gone, or belongs to another user. Any other error (no
# descriptor left, a read error) says nothing about the process, and must not count as its death. (EOPNOTSUPP: a
# threaded cgroup has no list of processes; its parent has.)
NONE_OF_OURS = (errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EACCES, errno.EPERM, errno.EOPNOTSUPP)


def boottime() -> float:
    """Seconds on CLOCK_BOOTTIME, the clock that leases are counted on."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wait_until(at: float) -> None:
    """Return when CLOCK_BOOTTIME reaches ``at``, and not before. Only the last SPIN_S are spent reading the clock."""
    while (left_s := at - boottime()) > 0:
        if left_s > SPIN_S:
            time.sleep(left_s - SPIN_S)


def take_signals(ended: "Callable[[], None]") -> int:
    """Call ``ended`` on TERM and INT; returns a descriptor that becomes readable after these and after SIGCHLD."""
    wake_fd, wake = os.pipe()
    os.set_blocking(wake_fd, False)
    os.set_blocking(wake, False)
    _signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    _signal.signal(SIGTERM, lambda _number, _frame: ended())
    _signal.signal(_signal.SIGINT, lambda _number, _frame: ended())
    _signal.signal(SIGCHLD, lambda _number, _frame: None)
    _signal.signal(_signal.SIGHUP, _signal.SIG_IGN)
    return wake_fd


def reset_signals() -> None:
    """Restore the default signal handling for a program."""
    _signal.set_wakeup_fd(-1)
    # All signals: a daemon that a shell put into the background ignores INT and QUIT, and every program would inherit
    # that.
    for number in range(1, 32):
        if number not in (SIGKILL, _signal.SIGSTOP):
            _signal.signal(number, _signal.SIG_DFL)


def become_subreaper() -> None:
    """Orphans among our descendants become our children, so that none can hide below init."""
    if _ctypes.call_cdeclfunction(_prctl, (PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) != 0:
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) was refused")


def label_of(nonce: str) -> int:
    """The number that labels the processes of an attempt, even if they change their environment.

    It is set as RLIMIT_LOCKS. Every child inherits it, through fork, setsid, exec and a change of user, and a process
    can only lower it. FNV-1a, folded into 61 bits above 2**61: nobody sets such a number by hand.
    """
    number = 0xCBF29CE484222325
    for byte in nonce.encode():
        number = (number ^ byte) * 0x100000001B3 % 2**64
    return 2**61 + number % 2**61


def carry_label(label: int) -> bool:
    """Label this process and all its future descendants; False if a lower limit is set already."""
    limit = label.to_bytes(8, sys.byteorder)
    return bool(_ctypes.call_cdeclfunction(_setrlimit, (RLIMIT_LOCKS, limit + limit)) == 0)


def take_name(name: str) -> None:
    """Set the short name that ps and top show; 15 bytes."""
    _ctypes.call_cdeclfunction(_prctl, (PR_SET_NAME, name.encode()[:15] + b"\0", 0, 0, 0))


class Complaints:
    """How complaints are written. ``name``: of the program that a person started; then each is written once."""

    name = ""
    last = ""


def complain(text: str) -> None:
    """Write a line to runner.log, or to the terminal. Its disk may be full: a lost line must not end a run."""
    if Complaints.name and text == Complaints.last:
        return
    Complaints.last = text
    start = f"{Complaints.name}:" if Complaints.name else f"{boottime():.3f}"
    try:
        os.write(2, f"{start} {text}\n".encode(errors="replace"))
    except OSError:
        return


def die_with_parent(signal: int) -> None:
    """Make the kernel send ``signal`` to this process when its parent dies; survives exec."""
    if _ctypes.call_cdeclfunction(_prctl, (PR_SET_PDEATHSIG, signal, 0, 0, 0)) != 0:
        raise OSError("prctl(PR_SET_PDEATHSIG) was refused")


def fork_into(cgroup: str) -> int:
    """Fork a child directly into a cgroup; -1 if the kernel cannot (before 5.7), or refuses.

    Moving a process into a cgroup later waits for an RCU grace period, 5 to 15 ms; starting it there costs nothing. The
    child may only make a few system calls and exec: the C library does not know about it.
    """
    fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
        # set_tid_size, cgroup
        fields = (CLONE_INTO_CGROUP, 0, 0, 0, SIGCHLD, 0, 0, 0, 0, 0, fd)
        args = b"".join([field.to_bytes(8, sys.byteorder) for field in fields])
        return int(_ctypes.call_cdeclfunction(_syscall, (SYS_CLONE3, args, len(args))))
    finally:
        os.close(fd)


def drain(fd: int) -> None:
    """Read and drop wake-up bytes. Bytes that cannot be read now stay, and wake us again."""
    try:
        os.read(fd, 4096)
    except OSError:
        return


def read_proc(path: str) -> "bytes | None":
    """A whole file under /proc; None if the process is gone or is not ours.

    Raises OSError for anything else: the process may still be alive.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        if exc.errno in NONE_OF_OURS:
            return None
        raise
    try:
        text = b""
        while part := os.read(fd, 65536):
            text += part
    except OSError as exc:
        if exc.errno in NONE_OF_OURS:
            return None
        raise
    finally:
        os.close(fd)
    return text


def stat_of(pid: int) -> "tuple[str, int, int, int] | None":
    """(state letter, parent, session, start in clock ticks) of a process; None if it does not exist.

    If only the main thread has ended, the process looks like a zombie while its other threads still work: then the
    letter is that of a living thread. Raises OSError as ``read_proc`` does.
    """
    text = read_proc(f"/proc/{pid}/stat")
    if not text:
        return None
    fields = text[text.rfind(b")") + 2 :].split()  # the process name before it may contain anything
    state = fields[0].decode()
    if state in "ZX" and int(fields[17]) > 1:
        state = _state_of_threads(pid) or state
    return state, int(fields[1]), int(fields[3]), int(fields[19])


def _state_of_threads(pid: int) -> str:
    """The state letter of a living thread; "" if there is none."""
    thread = living_thread(pid)
    text = read_proc(f"/proc/{pid}/task/{thread}/stat") if thread else b""
    return text[text.rfind(b")") + 2 :].split()[0].decode() if text else ""


def living_thread(pid: int) -> int:
    """The id of a thread of the process that has not ended; 0 if there is none."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError as exc:
        if exc.errno in NONE_OF_OURS:
            return 0
        raise
    for thread in threads:
        text = read_proc(f"/proc/{pid}/task/{thread}/stat")
        if text and text[text.rfind(b")") + 2 :].split()[0] not in b"ZX":
            return int(thread)
    return 0


def start_ticks(pid: int) -> int:
    """The start time of a process, in clock ticks since the boot: with pid and boot id, its identity."""
    stat = stat_of(pid)
    return stat[3] if stat is not None and stat[0] not in "ZX" else 0


def start_ticks_seen(pid: int) -> int:
    """As ``start_ticks``; 0 also if that cannot be read now."""
    try:
        return start_ticks(pid)
    except OSError:
        return 0


def peer_uid(link: "_socket.socket") -> int:
    """The user at the other end of a Unix socket, by the kernel's word."""
    return int.from_bytes(link.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)[4:8], sys.byteorder)


def boot_id() -> str:
    """The id of this boot."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return file.read().strip().decode()
