"""Ways in which a program of a job may try to reach what is the daemon's. Runs alone, under the machine's own Python.

    ways.py FILE     FILE: JSON, {"daemon": pid, "runner": pid, "supervisor": pid, "directory": of the attempt, …}; with
                     "only", a list of ways, these alone

Prints one JSON object: for each way what it has got, or "refused: why".
"""

import ctypes
import glob
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH = 16
SYS_PIDFD_GETFD = 438
MEMORY_MAX = 64 * 2**20


def read(*patterns: str) -> str:
    """The content of all files that match."""
    got, why = [], []
    for pattern in patterns:
        for path in sorted(glob.glob(pattern)) or [pattern]:
            try:
                with open(path, "rb") as file:
                    got.append(file.read(2**20).decode(errors="replace"))
            except OSError as exc:
                why.append(str(exc))
    if not got:
        raise PermissionError("; ".join(why))
    return "".join(got)


def write(path: str, text: str) -> str:
    with open(path, "a") as file:
        file.write(text)
    return "it was written"


def listed(path: str) -> str:
    return " ".join(os.listdir(path))


def memory(pid: int) -> str:
    """The first canary in the memory of a process that can be read."""
    got = b""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps:
            span, mode = line.split()[:2]
            start, end = [int(part, 16) for part in span.split("-")]
            if mode.startswith("rw") and end - start < MEMORY_MAX:
                try:
                    mem.seek(start)
                    got += mem.read(end - start)
                except OSError:
                    continue
    return found_in(got)


def found_in(data: bytes) -> str:
    place = data.find(b"CANARY")
    return data[place : place + 20].decode(errors="replace") if place >= 0 else "read, without the canary"


def called(number: int) -> str:
    """Raise what a system call has said."""
    if number < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return f"it returned {number}"


class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def read_across(pid: int) -> str:
    """process_vm_readv; an address that is not mapped would be another error than a refusal."""
    text = ctypes.create_string_buffer(64)
    ours, theirs = Vector(ctypes.addressof(text), 64), Vector(0x1000, 64)
    return called(LIBC.process_vm_readv(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0))


def trace(pid: int) -> str:
    said = called(LIBC.ptrace(PTRACE_ATTACH, pid, 0, 0))
    os.kill(pid, signal.SIGCONT)
    return said


def their_descriptor(pid: int) -> str:
    fd = os.pidfd_open(pid)
    try:
        return called(LIBC.syscall(SYS_PIDFD_GETFD, fd, 0, 0))
    finally:
        os.close(fd)


def run(*argv: str) -> str:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise PermissionError((done.stderr or done.stdout).strip()[:200])
    return done.stdout or "it worked"


def by_hard_link() -> str:
    os.link("/etc/coordd/keys.toml", "/tmp/keys")
    return read("/tmp/keys")


def poke(pid: int) -> str:
    os.kill(pid, signal.SIGCONT)
    return "it was taken"


def send(path: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"cancel by another user", path)
    return "it was taken"


def pose_as_supervisor() -> str:
    """Call every listener of a unit that there is."""
    with open("/proc/net/unix") as file:
        names = [line.split("@", 1)[1].strip() for line in file if "@coordd-run/" in line]
    for name in names:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(5)
            sock.connect(f"\0{name}")
            sock.send(b"hello 1 -")
            if said := sock.recv(100):
                return said.decode()
    raise PermissionError(f"{len(names)} listen, none answers")


def descriptors() -> str:
    """Everything that was left open for us beside the standard streams."""
    left = [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and os.path.exists(f"/proc/self/fd/{fd}")]
    if not left:
        raise PermissionError("none")
    return " ".join(os.readlink(f"/proc/self/fd/{fd}") for fd in left)


def change_user(uid: int) -> str:
    os.setuid(uid)
    return "it worked"


def ways(of: dict[str, Any]) -> dict[str, Callable[[], object]]:
    daemon, runner, boss, directory = of["daemon"], of["runner"], of["supervisor"], of["directory"]
    return {
        "the keyring": lambda: read("/etc/coordd/keys.toml"),
        "the ledger's password": lambda: read("/etc/coordd/ledger.password"),
        "the keyring by a hard link": by_hard_link,
        "the keyring through the daemon's root": lambda: read(f"/proc/{daemon}/root/etc/coordd/keys.toml"),
        "the keyring through the supervisor's root": lambda: read(f"/proc/{boss}/root/etc/coordd/keys.toml"),
        "the credentials": lambda: read("/run/credentials/coordd.service/*"),
        "the state directory": lambda: listed("/var/lib/coordd"),
        "the ledger": lambda: read("/var/lib/coordd/ledger.db"),
        "the journal's files": lambda: read("/var/lib/coordd/journal/*"),
        "the runs' directories": lambda: listed("/run/coordd/runs"),
        "the request of this run": lambda: read(f"{directory}/spec.json"),
        "the daemon's environment": lambda: read(f"/proc/{daemon}/environ"),
        "the daemon's memory": lambda: memory(daemon),
        "the daemon's memory by a system call": lambda: read_across(daemon),
        "the daemon under a debugger": lambda: trace(daemon),
        "the daemon's descriptors": lambda: read(f"/proc/{daemon}/fd/*"),
        "a descriptor of the daemon": lambda: their_descriptor(daemon),
        "the runner's memory": lambda: memory(runner),
        "the runner under a debugger": lambda: trace(runner),
        "the runner's descriptors": lambda: read(f"/proc/{runner}/fd/*"),
        "the supervisor's memory": lambda: memory(boss),
        "the supervisor under a debugger": lambda: trace(boss),
        "a signal to the daemon": lambda: poke(daemon),
        "a signal to the runner": lambda: poke(runner),
        "a signal to the supervisor": lambda: poke(boss),
        "a command to the runner": lambda: send(f"{directory}/sock"),
        "the place of a supervisor": pose_as_supervisor,
        "descriptors that were left open": descriptors,
        "to be the daemon's user": lambda: change_user(of["uid"]),
        "to be root": lambda: change_user(0),
        "a unit of another user": lambda: run("systemctl", "--no-ask-password", "start", of["unit"]),
        "a transient unit": lambda: run(
            "systemd-run", "--no-ask-password", "--pipe", "/bin/cat", "/etc/coordd/keys.toml"
        ),
        "more limits": lambda: run("systemctl", "--no-ask-password", "set-property", of["own"], "TasksMax=infinity"),
        "another cgroup": lambda: write("/sys/fs/cgroup/cgroup.procs", str(os.getpid())),
        "a namespace of users": lambda: run("unshare", "--map-root-user", "cat", "/etc/coordd/keys.toml"),
        "the machine's memory": lambda: read("/dev/mem"),
        "root's list": lambda: write("/etc/coordd/run_as.allow", "etl\n"),
        "the job files": lambda: write("/etc/coordd/jobs.d/new.toml", "x"),
        "to cancel as an operator": lambda: run(*of["ctl"], "run", "cancel", of["run"]),
    }


def main() -> None:
    with open(sys.argv[1]) as file:
        of = json.load(file)
    got = {}
    for name, way in ways(of).items():
        if of["only"] and name not in of["only"]:
            continue
        try:
            text = str(way())
            got[name] = text if len(text) < 300 else found_in(text.encode())
        except (OSError, subprocess.SubprocessError) as exc:
            got[name] = f"refused: {exc}"
    print("ways " + json.dumps(got))


main()
