"""Is a process of this machine part of a run? Then it may look at the control socket, and no more.

It is known by what it cannot easily shed: the cgroup of its attempt, where there is one; an ancestor that is a runner,
which adopts the orphans among its descendants; the limit that marks an attempt, and that children inherit; and the
environment that it or an ancestor was started with. A process has none of them when, without a cgroup, it has been
orphaned after its runner died, lowered that limit, and wiped its environment.

Jobs run as the daemon's user. This keeps a job from steering the daemon by mistake or by a careless script; who means
harm as the daemon's user has other ways (the ledger's file, the daemon's memory): run such jobs as another user.
"""

from __future__ import annotations

import os
import re

from coordd.adapters.process import CGROUP_PREFIX

MARK = b"COORDD_NONCE="

# RLIMIT_LOCKS of the processes of an attempt is a number of this size, which nobody sets by hand.
LIMIT = re.compile(rb"^Max file locks +(\d+)", re.MULTILINE)
LIMIT_MIN = 2**61

# Every runner is started from a text that imports this.
RUNNER = b"coordd.runner.__main__"

# More generations than this are nobody's.
GENERATIONS_MAX = 100

# As much of a process's environment and command line as is read.
TEXT_BYTES_MAX = 4 * 1024 * 1024


def in_a_run(pid: int, uid: int) -> bool:
    """The process of that user belongs to a run of this machine.

    One of our own user that is gone counts as inside: it cannot be told any more. One of another user may be there and
    hidden from us (ProtectProc=invisible), and a run becomes another user only by a program that is set-uid, which the
    packaged unit does not let it. Our own ancestors are not asked: who was started inside a run, daemon included,
    shares them.
    """
    me = os.getpid()
    if pid == me:
        return False
    if not os.path.exists(f"/proc/{pid}/stat"):
        return uid == os.geteuid()
    ours = {me, *_ancestors(me)}
    if _in_attempt_cgroup(pid):
        return True
    return any(_is_marked(one) for one in (pid, *_ancestors(pid)) if one not in ours and one > 1)


def _ancestors(pid: int) -> list[int]:
    found: list[int] = []
    for _ in range(GENERATIONS_MAX):
        data = _read(f"/proc/{pid}/stat")
        fields = data[data.rfind(b")") + 2 :].split()  # the name before it may hold anything
        pid = int(fields[1]) if len(fields) > 1 else 0
        if pid < 1:
            break
        found.append(pid)
    return found


def _is_marked(pid: int) -> bool:
    environ = b"\0" + _read(f"/proc/{pid}/environ")
    limit = LIMIT.search(_read(f"/proc/{pid}/limits"))
    if limit and LIMIT_MIN <= int(limit.group(1)) < 2 * LIMIT_MIN:
        return True
    return b"\0" + MARK in environ or RUNNER in _read(f"/proc/{pid}/cmdline")


def _in_attempt_cgroup(pid: int) -> bool:
    theirs, ours = _cgroup(pid), _cgroup(os.getpid())
    below = theirs.removeprefix(f"{ours.rstrip('/')}/") if ours else theirs
    return below != theirs and below.startswith(CGROUP_PREFIX)


def _cgroup(pid: int) -> str:
    for line in _read(f"/proc/{pid}/cgroup").decode(errors="replace").splitlines():
        if line.startswith("0::"):
            return line[3:]
    return ""


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(TEXT_BYTES_MAX)
    except OSError:
        return b""  # it is gone, or another user's
