"""The cgroups of a node's attempts: children of the daemon's own."""

from __future__ import annotations

import os


def own_cgroup() -> str:
    """The directory of this process's own cgroup (version 2) if it may have children; else ""."""
    for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        if not os.path.exists(f"{mount}/cgroup.procs"):
            continue
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            paths = [line[3:].strip() for line in file if line.startswith("0::")]
        if not paths:
            return ""
        path = f"{mount}{paths[0]}".rstrip("/")
        probe = f"{path}/coordd-probe-{os.getpid()}"
        try:
            os.mkdir(probe)
            os.rmdir(probe)
        except OSError:
            return ""
        return path
    return ""


def remove_cgroup(path: str) -> None:
    """Remove an empty cgroup; one with living processes cannot be removed, and stays."""
    try:
        os.rmdir(path)
    except OSError:
        return
