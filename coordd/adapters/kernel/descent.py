"""Is a process of this machine part of a run? Then it may look at the control socket, and no more.

It is recognised by what it cannot easily remove: the cgroup of its attempt, if there is one; an ancestor that is
a runner, which adopts orphans among its descendants; the label of the attempt, a limit that children inherit; and
the initial environment of the process or an ancestor. A process is missed only if there is no cgroup, it became an
orphan after its runner died, it lowered that limit, and it wiped its environment.

A program with ``run_as`` is in a unit of its own. /proc may hide it from the daemon (ProtectProc=invisible): the
cgroup of its unit lists it.

Jobs run as the daemon's user. This prevents a job from controlling the daemon by mistake or by a careless script. A
hostile process of the daemon's user has other ways (the ledger's file, the daemon's memory): run such jobs as another
user.
"""

from __future__ import annotations

import glob
import os
import re

from coordd.adapters.kernel import proc
from coordd.adapters.process import CGROUP_PREFIX

NONCE = b"COORDD_NONCE="

# The size of RLIMIT_LOCKS for processes of an attempt; nobody sets such a number by hand.
LIMIT = re.compile(rb"^Max file locks +(\d+)", re.MULTILINE)
LIMIT_MIN = 2**61

# Every runner's command line contains this import.
RUNNER = b"coordd.runner.__main__"

# The cgroups of the units of runs (systemd/coordd-run@.service), wherever the site puts their slice.
UNITS = tuple(f"/sys/fs/cgroup/{slices}coordd-run@*.service" for slices in ("*.slice/", "*.slice/*.slice/"))

# Maximum number of generations of ancestors.
GENERATIONS_MAX = 100


def in_a_run(pid: int, uid: int) -> bool:
    """True if the process of that user belongs to a run on this machine.

    A process of our own user that is gone, or ends while it is looked at, counts as part of a run, because nobody can
    tell any more. A process of another user may be hidden from us: then it is one of a run only if it is in the unit of
    a run. The daemon's own ancestors are ignored: a daemon that was started inside a run shares them with its callers.
    """
    me = os.getpid()
    if pid == me:
        return False
    ours = {me, *_ancestors(me)}
    if _in_attempt_cgroup(pid):
        return True
    if any(_is_of_a_run(one) for one in (pid, *_ancestors(pid)) if one not in ours and one > 1):
        return True
    if uid != os.geteuid():
        return _in_a_unit(pid)
    return not os.path.exists(f"/proc/{pid}/stat")  # asked last: what was read may be nothing


def _ancestors(pid: int) -> list[int]:
    found: list[int] = []
    for _ in range(GENERATIONS_MAX):
        _, pid = proc.state_and_parent(pid)
        if pid < 1:
            break
        found.append(pid)
    return found


def _is_of_a_run(pid: int) -> bool:
    environ = b"\0" + proc.read(pid, "environ")
    limit = LIMIT.search(proc.read(pid, "limits"))
    if limit and LIMIT_MIN <= int(limit.group(1)) < 2 * LIMIT_MIN:
        return True
    return b"\0" + NONCE in environ or RUNNER in proc.read(pid, "cmdline")


def _in_attempt_cgroup(pid: int) -> bool:
    theirs, ours = _cgroup(pid), _cgroup(os.getpid())
    below = theirs.removeprefix(f"{ours.rstrip('/')}/") if ours else theirs
    return below != theirs and below.startswith(CGROUP_PREFIX)


def _in_a_unit(pid: int) -> bool:
    wanted = str(pid)
    for pattern in UNITS:
        for unit in glob.iglob(pattern):
            for place, _, _ in os.walk(unit):
                try:
                    with open(f"{place}/cgroup.procs", encoding="ascii") as file:
                        if wanted in file.read().split():
                            return True
                except OSError:  # the unit has ended meanwhile
                    continue
    return False


def _cgroup(pid: int) -> str:
    for line in proc.read(pid, "cgroup").decode(errors="replace").splitlines():
        if line.startswith("0::"):
            return line[3:]
    return ""
