"""What a process asks of the kernel about itself (prctl)."""

from __future__ import annotations

import ctypes
import signal

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Orphans among our descendants become our children. So a search from this process finds each of them."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) was refused")


def die_with_parent() -> None:
    """The kernel kills this process when its parent dies; survives exec. May be called between fork and exec."""
    _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def close_memory() -> bool:
    """Close this process to others of its user: no ptrace, no /proc/PID/mem, environ or fd, no core dump.

    Programs that it starts are open again: the kernel resets this at exec. Runners and watchers stay open on purpose:
    where /proc hides what cannot be traced (ProtectProc=invisible), the daemon could not see whether they live.
    Returns False if the kernel refuses.
    """
    return bool(_libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)
