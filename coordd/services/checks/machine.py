"""Looks at this machine: room on a disk, memory, load. Blocking, so each runs in its check's own thread."""

from __future__ import annotations

import os

from coordd.core.checks.check import DISK, LOAD, MEMORY, Check
from coordd.core.checks.state import DEGRADED, HEALTHY, UNAVAILABLE, UNHEALTHY, UNKNOWN, Result
from coordd.services.strategies.rooms import measured

# The limits without keys: percent that are free, load for each processor. (degraded, unhealthy)
LIMITS = {DISK: (10.0, 5.0), MEMORY: (10.0, 5.0), LOAD: (2.0, 4.0)}


def look(check: Check) -> Result:
    """Look once. It may hang, on a disk elsewhere."""
    if check.kind == DISK:
        try:
            about = os.statvfs(check.path)
        except FileNotFoundError:
            return Result(UNAVAILABLE, f"there is no {check.path}")
        except OSError as exc:
            return Result(UNHEALTHY, f"{check.path}: {exc.strerror or exc}")
        free = 100.0 * about.f_bavail / about.f_blocks if about.f_blocks else 0.0
        inodes = 100.0 * about.f_favail / about.f_files if about.f_files else 100.0
        if inodes < free:
            return judged(check, inodes, f"{inodes:.0f} % of the inodes of {check.path} are free", "inodes")
        return judged(check, free, f"{free:.0f} % of {check.path} are free", "free")
    try:
        load, memory = measured()
    except (OSError, LookupError, ValueError) as exc:
        return Result(UNKNOWN, f"/proc cannot be read: {exc}")
    if check.kind == MEMORY:
        return judged(check, 100.0 * memory, f"{100.0 * memory:.0f} % of the memory are available", "available")
    return judged(check, load, f"the load is {load:.2f} for each processor", "load")


def judged(check: Check, value: float, text: str, label: str) -> Result:
    """What a measured value means. Of room less is worse, of load more."""
    usual = LIMITS[check.kind]
    degraded = usual[0] if check.degraded_at is None else check.degraded_at
    unhealthy = usual[1] if check.unhealthy_at is None else check.unhealthy_at
    sign = 1 if check.kind == LOAD else -1
    unit = "" if check.kind == LOAD else "%"
    figures = f"{label}={value:.2f}{unit};{degraded:g};{unhealthy:g}"
    if sign * value >= sign * unhealthy:
        return Result(UNHEALTHY, text, figures)
    return Result(DEGRADED if sign * value >= sign * degraded else HEALTHY, text, figures)
