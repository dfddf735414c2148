"""What the runner asks of the kernel beyond os: subreaper, death signal, clone into a cgroup, who a process is."""

import _ctypes  # ctypes itself costs 3 ms of every start
import _signal  # type: ignore[import-not-found]  # no stub; signal itself costs 3 ms
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_libc = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None is this process itself
_prctl = _ctypes.dlsym(_libc, "prctl")
_syscall = _ctypes.dlsym(_libc, "syscall")

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SYS_CLONE3 = 435  # the same on every architecture
CLONE_INTO_CGROUP = 0x200000000
SIGTERM: int = _signal.SIGTERM
SIGKILL: int = _signal.SIGKILL
SIGCHLD: int = _signal.SIGCHLD


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


def stat_of(pid: int) -> "tuple[str, int, int, int] | None":
    """(state letter, parent, session, start in clock ticks) of a process; None when there is none."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(fd, 1024)
    except OSError:
        return None
    finally:
        os.close(fd)
    fields = text[text.rfind(b")") + 2 :].split()  # the name before it may hold anything
    return fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19])


def start_ticks(pid: int) -> int:
    """When a process was started, in clock ticks since the boot: with the pid and the boot id its identity."""
    stat = stat_of(pid)
    return stat[3] if stat is not None and stat[0] not in "ZX" else 0


def boot_id() -> str:
    """The name of this boot."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return file.read().strip().decode()
