"""The machine, boot, PID namespace and cgroup that this process is in, as far as core/runs/knowledge.py needs it.

Runners' watchers load this file, so it imports only os.
"""

import os

# The inodes of the namespaces that the kernel makes at boot (include/linux/proc_ns.h). A process in another one is in a
# container, or in a unit that hides as much.
FIRST_PID_NS = 0xEFFFFFFC
FIRST_CGROUP_NS = 0xEFFFFFFB

# Container engines that share the namespaces of the machine are known by their files.
CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")

# systemd writes this while the machine has no id yet.
NO_ID = "uninitialized"


def here() -> "dict[str, str]":
    """This place, with the keys of ``knowledge.PLACE``; "" for what cannot be read."""
    machine = _text("/etc/machine-id")
    pid_ns = _inode("/proc/self/ns/pid")
    return {
        "machine": "" if machine == NO_ID else machine,
        "host": os.uname().nodename,
        "boot": _text("/proc/sys/kernel/random/boot_id"),
        "pid_ns": pid_ns,
        "container": _container(pid_ns, _inode("/proc/self/ns/cgroup")),
    }


def _container(pid_ns: str, cgroup_ns: str) -> str:
    """Why this counts as a container; "" outside."""
    if pid_ns != str(FIRST_PID_NS):
        return "PID namespace"
    if cgroup_ns != str(FIRST_CGROUP_NS):
        return "cgroup namespace"
    return next((path for path in CONTAINER_FILES if os.path.exists(path)), "")


def cgroup_is_empty(path: str) -> bool:
    """True if the cgroup has no process, or was removed: only an empty one can be. False if that cannot be seen."""
    try:
        with open(f"{path}/cgroup.events", "rb") as file:
            return b"populated 0" in file.read()
    except FileNotFoundError:
        pass
    except OSError:
        return False
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    return os.path.exists(f"{path}/cgroup.procs")  # otherwise cgroups are not mounted here


def shows_every_process() -> bool:
    """True if /proc hides no process from us (mount option hidepid). Root may lack the capability too."""
    proc = [line.split() for line in _text("/proc/self/mounts").splitlines()]
    options = [fields[3].split(",") for fields in proc if fields[1:3] == ["/proc", "proc"]]
    return bool(options) and not any(option.startswith("hidepid=") for option in options[-1])


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _inode(path: str) -> str:
    """The inode of a namespace; "" if it cannot be seen."""
    try:
        return str(os.stat(path).st_ino)
    except OSError:
        return ""
