"""The processes of one attempt: finds all of them, signals them, and tells when none is left.

Four methods, because each has a hole. The cgroup contains every process that was started in it, but there may be none.
Descent and session find processes that were not orphaned elsewhere. The nonce in the environment finds processes that
have left both. The label (``kernel.label_of``) finds processes that have cleared their environment too: it is a limit,
and limits are inherited.

And one safeguard, because a mistake would kill foreign processes: a process older than the attempt is never a member.
"""

import os

from coordd.runner.kernel import NONE_OF_OURS, SIGKILL, label_of, living_thread, read_proc, stat_of

# Nested cgroups that a job has created are removed from the bottom, no deeper than this.
CGROUP_DEPTH_MAX = 16


class Tree:
    """All processes of one attempt, except those in ``spare`` (the runner and its watchers).

    ``born_ticks``: when the attempt began, in clock ticks since the boot.
    """

    def __init__(self, nonce: str, cgroup: str, spare: "set[int]", born_ticks: int) -> None:
        assert nonce, "every process would carry an empty nonce"
        assert born_ticks > 0, "the start of the attempt is known"
        assert min(spare) > 1, "everything descends from init and from the kernel's 0"
        self.born_ticks = born_ticks
        self.nonce = b"COORDD_NONCE=" + nonce.encode() + b"\0"
        self.label = str(label_of(nonce)).encode()
        self.cgroup = cgroup  # "" without one
        self.spare = spare
        self.shared: set[int] = set()  # spare ones that have foreign children too: descent does not start there
        self.session = 0  # the program's pid; it leads its own session

    def members(self) -> "list[int]":
        """Every living process of the attempt; descent starts at the spare ones, except those in ``shared``.

        Raises OSError when /proc cannot be read: then nobody can know that none is left.
        """
        parents: dict[int, list[int]] = {}
        alive: set[int] = set()
        found: list[int] = cgroup_members(self.cgroup) if self.cgroup else []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            pid = int(name)
            stat = stat_of(pid)
            if stat is None:
                continue
            state, parent, session, ticks = stat
            if ticks < self.born_ticks and pid not in self.spare:
                continue
            parents.setdefault(parent, []).append(pid)
            if state in "ZX":
                continue
            alive.add(pid)
            if (self.session and session == self.session) or self._carries_mark(pid):
                found.append(pid)
        members: set[int] = set()
        found.extend(self.spare - self.shared)
        while found:
            pid = found.pop()
            if pid not in members:
                members.add(pid)
                found.extend(parents.get(pid, ()))
        return [pid for pid in members if pid in alive and pid not in self.spare]

    def _carries_mark(self, pid: int) -> bool:
        """True for a process of our user. A person who learns the nonce could put it on another user's process, so that
        a runner as root kills it, or another runner waits for it for ever. The other methods find a process of ours
        that has become another user.
        """
        if not self._is_marked(pid):
            return False
        status = read_proc(f"/proc/{pid}/status") or b""
        uids = status.partition(b"\nUid:")[2].partition(b"\n")[0].split()
        return str(os.geteuid()).encode() in uids

    def _is_marked(self, pid: int) -> bool:
        if self.label in (read_proc(f"/proc/{pid}/limits") or b""):
            return True
        environ = read_proc(f"/proc/{pid}/environ")
        if environ == b"" and (thread := living_thread(pid)):
            environ = read_proc(f"/proc/{pid}/task/{thread}/environ")  # the main thread has ended, with its memory
        return self.nonce in (environ or b"") + b"\0"

    def has_strangers(self) -> bool:
        """True if a living process carries the label of the attempt, of whatever user: it may have become another one.

        ``members`` does not count it: anybody can put the label on a process. Raises OSError as ``members`` does.
        """
        for name in os.listdir("/proc"):
            if name.isdigit() and self.label in (read_proc(f"/proc/{name}/limits") or b""):
                stat = stat_of(int(name))
                if stat is not None and stat[0] not in "ZX":
                    return True
        return False

    def populated(self) -> bool:
        """True if the cgroup has a process; False without a cgroup. Raises OSError as ``members`` does, and if we may
        not read it.
        """
        if not self.cgroup:
            return False
        events = read_proc(f"{self.cgroup}/cgroup.events")
        if events is None and os.path.isdir(self.cgroup):
            raise PermissionError(f"{self.cgroup} cannot be read")
        return b"populated 1" in (events or b"")

    def signal(self, number: int) -> int:
        """Signal every member; returns their number. Raises OSError as ``members`` does."""
        if number == SIGKILL and self.cgroup:
            kill_cgroup(self.cgroup)  # where the kernel cannot, the members are killed one by one
        members = self.members()
        for pid in members:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
            except PermissionError:
                continue  # it runs as another user by now: it remains a member, and is reported
        return len(members)

    def remove_cgroup(self) -> None:
        """Remove the empty cgroup, and cgroups that the job has created in it."""
        if self.cgroup:
            remove_cgroup(self.cgroup, 0)


def cgroup_members(path: str, depth: int = 0) -> "list[int]":
    """The processes of a cgroup and of those below it. Raises OSError as ``Tree.members`` does."""
    pids = [int(line) for line in (read_proc(f"{path}/cgroup.procs") or b"").split()]
    if depth < CGROUP_DEPTH_MAX:
        try:
            below = [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
        except OSError as exc:
            if exc.errno not in NONE_OF_OURS:
                raise
            return pids  # removed meanwhile
        for each in below:
            pids.extend(cgroup_members(each, depth + 1))
    return pids


def kill_cgroup(path: str) -> bool:
    """Kill every process of a cgroup and of those below it; False if the kernel cannot (before 5.14), or refuses."""
    try:
        fd = os.open(f"{path}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.write(fd, b"1") > 0
    except OSError:
        return False
    finally:
        os.close(fd)


def remove_cgroup(path: str, depth: int) -> bool:
    """Remove a cgroup and those below it; False if one of them still has a living process."""
    try:
        if depth < CGROUP_DEPTH_MAX:
            for entry in os.scandir(path):
                if entry.is_dir(follow_symlinks=False):
                    remove_cgroup(entry.path, depth + 1)
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
