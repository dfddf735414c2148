"""A program that tries to read another process of its own user in each way that the kernel has."""

from __future__ import annotations

import json

# argv: the pid of the daemon. It prints, for the daemon and for a child of its own, which ways were open.
PROGRAM = """
import ctypes, json, os, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def ptrace(pid):
    PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
    if libc.ptrace(PTRACE_SEIZE, pid, None, None) != 0:
        return False
    libc.ptrace(PTRACE_DETACH, pid, None, None)
    return True
def vm_read(pid):
    here, there = ctypes.create_string_buffer(8), (ctypes.c_size_t * 2)(0x1000, 8)
    local = (ctypes.c_size_t * 2)(ctypes.addressof(here), 8)
    done = libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(there), 1, 0)
    return done >= 0 or ctypes.get_errno() not in (1, 3)  # an address that is not mapped is another error
def take_fd(pid):
    pidfd = libc.syscall(434, pid, 0)
    return pidfd >= 0 and libc.syscall(438, pidfd, 0, 0) >= 0
def opens(pid, name):
    with open(f"/proc/{pid}/{name}", "rb"):
        return True
WAYS = {
    **{name: lambda pid, name=name: opens(pid, name) for name in ("mem", "environ", "maps", "auxv")},
    "fd": lambda pid: bool(os.listdir(f"/proc/{pid}/fd")),
    "cwd": lambda pid: bool(os.readlink(f"/proc/{pid}/cwd")),
    "exe": lambda pid: bool(os.readlink(f"/proc/{pid}/exe")),
    "ptrace": ptrace, "vm_read": vm_read, "take_fd": take_fd,
}
def tried(pid):
    found = {}
    for name, way in WAYS.items():
        try:
            found[name] = way(pid)
        except OSError as exc:
            found[name] = False
    return found
child = subprocess.Popen(["/bin/sleep", "60"])
time.sleep(0.2)
print(json.dumps({"daemon": tried(int(sys.argv[1])), "child": tried(child.pid)}))
child.kill()
"""
WAYS = ("mem", "environ", "maps", "auxv", "fd", "cwd", "exe", "ptrace", "vm_read", "take_fd")


def job_file(python: str, script: str) -> str:
    """A job that runs PROGRAM, which is in the file ``script``; its parameter is the daemon's pid."""
    argv = json.dumps([python, script, "{pid}"])
    return f'params = {{ pid = "0" }}\n[command]\nargv = {argv}\n'


def said(log: str) -> tuple[dict[str, bool], dict[str, bool]]:
    """What the program printed: the ways to the daemon, and to its own child."""
    found = json.loads(log)
    return found["daemon"], found["child"]
