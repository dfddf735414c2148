"""The processes of one attempt: find all of them, signal them, know when none is left.

Four nets, because each has a hole. The cgroup holds whatever was born in it, but there may be none. Descent and
session hold what has not been orphaned elsewhere. The nonce in the environment holds what has left both. The mark
(``kernel.mark_of``) holds what has wiped its environment too: it is a limit, and limits are inherited.

And one fence, because a mistake here would kill strangers: nothing that is older than the attempt is ever a member.
"""

import os

from coordd.runner.kernel import NONE_OF_OURS, SIGKILL, living_thread, mark_of, read_proc, stat_of

# A cgroup that a job has filled with cgroups of its own is removed from below, no deeper than this.
CGROUP_DEPTH_MAX = 16


class Tree:
    """All processes of one attempt but those in ``spare`` (the runner and its watchers).

    ``born_ticks``: when the attempt began, in clock ticks since the boot.
    """

    def __init__(self, nonce: str, cgroup: str, spare: "set[int]", born_ticks: int) -> None:
        assert nonce, "every process would carry an empty nonce"
        assert born_ticks > 0, "the fence needs a place"
        assert min(spare) > 1, "everything descends from init and from the kernel's 0"
        self.born_ticks = born_ticks
        self.nonce = b"COORDD_NONCE=" + nonce.encode() + b"\0"
        self.mark = str(mark_of(nonce)).encode()
        self.cgroup = cgroup  # "" where there is none
        self.spare = spare
        self.session = 0  # the program's pid; it leads a session of its own

    def members(self) -> "list[int]":
        """Every process of the attempt that is alive; descent counts from the spare ones.

        Raises OSError when /proc cannot be read: then nobody may say that none is left.
        """
        parents: dict[int, list[int]] = {}
        alive: set[int] = set()
        found: list[int] = self._cgroup_members(self.cgroup, 0) if self.cgroup else []
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
        found.extend(self.spare)
        while found:
            pid = found.pop()
            if pid not in members:
                members.add(pid)
                found.extend(parents.get(pid, ()))
        return [pid for pid in members if pid in alive and pid not in self.spare]

    def _carries_mark(self, pid: int) -> bool:
        """A process of ours: a person who learns the nonce could put it on a process of another user, to have that
        killed by a runner that is root, or waited for by one that may not kill it. One of ours that has become another
        user altogether is held by the other nets."""
        if not self._is_marked(pid):
            return False
        status = read_proc(f"/proc/{pid}/status") or b""
        uids = status.partition(b"\nUid:")[2].partition(b"\n")[0].split()
        return str(os.geteuid()).encode() in uids

    def _is_marked(self, pid: int) -> bool:
        if self.mark in (read_proc(f"/proc/{pid}/limits") or b""):
            return True
        environ = read_proc(f"/proc/{pid}/environ")
        if environ == b"" and (thread := living_thread(pid)):
            environ = read_proc(f"/proc/{pid}/task/{thread}/environ")  # the main thread has ended, with its memory
        return self.nonce in (environ or b"") + b"\0"

    def _cgroup_members(self, path: str, depth: int) -> "list[int]":
        pids = [int(line) for line in (read_proc(f"{path}/cgroup.procs") or b"").split()]
        if depth < CGROUP_DEPTH_MAX:
            try:
                below = [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
            except OSError as exc:
                if exc.errno not in NONE_OF_OURS:
                    raise
                return pids  # removed meanwhile
            for each in below:
                pids.extend(self._cgroup_members(each, depth + 1))
        return pids

    def populated(self) -> bool:
        """The cgroup holds a process; False where there is no cgroup. Raises OSError as ``members`` does."""
        return bool(self.cgroup) and b"populated 1" in (read_proc(f"{self.cgroup}/cgroup.events") or b"")

    def signal(self, number: int) -> int:
        """Send a signal to every member; returns how many there were. Raises OSError as ``members`` does."""
        if number == SIGKILL and self.cgroup:
            self._kill_cgroup()
        members = self.members()
        for pid in members:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
            except PermissionError:
                continue  # it runs as another user by now: it stays a member, and is seen
        return len(members)

    def _kill_cgroup(self) -> None:
        try:
            fd = os.open(f"{self.cgroup}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return  # before Linux 5.14: the members are killed one by one
        try:
            os.write(fd, b"1")
        except OSError:
            return  # likewise
        finally:
            os.close(fd)

    def remove_cgroup(self) -> None:
        """Remove the empty cgroup, and those that the job has made in it."""
        if self.cgroup:
            remove_cgroup(self.cgroup, 0)


def remove_cgroup(path: str, depth: int) -> bool:
    """Remove a cgroup and those below it; False when something still lives in one of them."""
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
