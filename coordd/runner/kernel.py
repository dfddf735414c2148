"""What the runner asks of the kernel beyond os: subreaper, death signal, clone into a cgroup, who a process is."""

import _ctypes  # ctypes itself costs 3 ms of every start
import _signal  # type: ignore[import-not-found]  # no stub; signal itself costs 3 ms
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
SYS_CLONE3 = 435  # the same on every architecture
CLONE_INTO_CGROUP = 0x200000000
SIGTERM: int = _signal.SIGTERM
SIGKILL: int = _signal.SIGKILL
SIGCHLD: int = _signal.SIGCHLD

# At a restart of the daemon systemd warns of each process of the unit that lives on, two or three lines each. Ours do
# so on purpose, and a name in parentheses says so: systemd passes over these (its own helpers are called so). 15 bytes.
RUNNER_NAME = "(coordd-runner)"
WATCHER_NAME = "(coordd-watch)"

# A limit that Linux shows and hands down, and has not used since 2.4.25: see ``mark_of``.
RLIMIT_LOCKS = 10

# A process of which /proc says one of these is gone, or belongs to somebody else. Anything else (no descriptor left, a
# read error) says nothing about the process, and must not pass for its death. (EOPNOTSUPP: a threaded cgroup has no
# list of processes; the one above it has.)
NONE_OF_OURS = (errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EACCES, errno.EPERM, errno.EOPNOTSUPP)


def boottime() -> float:
    """Seconds on CLOCK_BOOTTIME, the clock that leases are counted on."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def take_signals(ended: "Callable[[], None]") -> int:
    """Have TERM and INT call ``ended``; returns a descriptor that is readable after these and after SIGCHLD."""
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
    """Give a program what it expects to find."""
    _signal.set_wakeup_fd(-1)
    # All of them: a daemon that a shell put into the background ignores INT and QUIT, and so would every program.
    for number in range(1, 32):
        if number not in (SIGKILL, _signal.SIGSTOP):
            _signal.signal(number, _signal.SIG_DFL)


def become_subreaper() -> None:
    """Orphans among our descendants become our children, so that none can hide behind init."""
    if _ctypes.call_cdeclfunction(_prctl, (PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) != 0:
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) was refused")


def mark_of(nonce: str) -> int:
    """The number by which the processes of an attempt are known, whatever they do with their environment.

    It is set as RLIMIT_LOCKS, which every child inherits, through fork, setsid, exec and a change of user, and which
    a process can only lower. FNV-1a, folded into 61 bits above 2**61: a number that nobody sets by hand.
    """
    number = 0xCBF29CE484222325
    for byte in nonce.encode():
        number = (number ^ byte) * 0x100000001B3 % 2**64
    return 2**61 + number % 2**61


def carry_mark(mark: int) -> bool:
    """Mark this process and all that will descend from it; False where a lower limit stands already."""
    limit = mark.to_bytes(8, sys.byteorder)
    return bool(_ctypes.call_cdeclfunction(_setrlimit, (RLIMIT_LOCKS, limit + limit)) == 0)


def take_name(name: str) -> None:
    """The short name that ps and top show; 15 bytes of it."""
    _ctypes.call_cdeclfunction(_prctl, (PR_SET_NAME, name.encode()[:15] + b"\0", 0, 0, 0))


def complain(text: str) -> None:
    """A line into runner.log. That file may stand on a full disk, and no line of it is worth a run."""
    try:
        os.write(2, f"{boottime():.3f} {text}\n".encode(errors="replace"))
    except OSError:
        return


def die_with_parent(signal: int) -> None:
    """Have the kernel send ``signal`` to this process when its parent dies; survives exec."""
    if _ctypes.call_cdeclfunction(_prctl, (PR_SET_PDEATHSIG, signal, 0, 0, 0)) != 0:
        raise OSError("prctl(PR_SET_PDEATHSIG) was refused")


def fork_into(cgroup: str) -> int:
    """Fork a child that is born inside a cgroup; -1 where the kernel cannot (before 5.7), or may not.

    Moving a process into a cgroup after its fork waits for an RCU grace period, 5 to 15 ms; being born there
    costs nothing. The child must do no more than a few system calls and exec: the C library does not know of it.
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
    """Take what only wakes us. What cannot be read just now stays, and wakes us again."""
    try:
        os.read(fd, 4096)
    except OSError:
        return


def read_proc(path: str) -> "bytes | None":
    """The whole of a file under /proc; None when the process is gone or is not ours.

    Raises OSError for anything else: what cannot be read just now may still be alive.
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
    """(state letter, parent, session, start in clock ticks) of a process; None when there is none.

    A process whose main thread has ended is a zombie by its own letter while its other threads work on: then the
    letter is that of a thread which lives. Raises OSError as ``read_proc`` does.
    """
    text = read_proc(f"/proc/{pid}/stat")
    if not text:
        return None
    fields = text[text.rfind(b")") + 2 :].split()  # the name before it may hold anything
    state = fields[0].decode()
    if state in "ZX" and int(fields[17]) > 1:
        state = _state_of_threads(pid) or state
    return state, int(fields[1]), int(fields[3]), int(fields[19])


def _state_of_threads(pid: int) -> str:
    """The state letter of a thread that lives; "" when there is none."""
    thread = living_thread(pid)
    text = read_proc(f"/proc/{pid}/task/{thread}/stat") if thread else b""
    return text[text.rfind(b")") + 2 :].split()[0].decode() if text else ""


def living_thread(pid: int) -> int:
    """The number of a thread of the process that has not ended; 0 when there is none."""
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
    """When a process was started, in clock ticks since the boot: with the pid and the boot id its identity."""
    stat = stat_of(pid)
    return stat[3] if stat is not None and stat[0] not in "ZX" else 0


def boot_id() -> str:
    """The name of this boot."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return file.read().strip().decode()
