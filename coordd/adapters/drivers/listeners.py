"""The addresses on which the processes of a program listen, as /proc says."""

from __future__ import annotations

import os
import pwd
import socket
import sys
from typing import NamedTuple

from coordd.adapters.kernel import proc

# In /proc/net/tcp: the state LISTEN.
LISTENING = "0A"

# A program with more processes, or a machine with more listeners, is not searched to its end.
PROCESSES_MAX = 1000
LISTENERS_MAX = 5000


class Listener(NamedTuple):
    """``everywhere``: on all addresses of the machine; ``address`` is then a loop-back address."""

    address: str
    port: int
    everywhere: bool


class _Open(NamedTuple):
    listener: Listener
    uid: int
    inode: str


def of_program(pid: int, user: str = "") -> list[Listener]:
    """Where this process and its descendants listen; [] if it is gone.

    If the process is another user's and its descriptors cannot be seen, every listener of that ``user`` counts.
    """
    try:
        inodes = {inode for one in (pid, *_descendants(pid)) for inode in _sockets(one)}
    except OSError:
        inodes = set()
    if inodes or not user:
        return [one.listener for one in _listening() if one.inode in inodes]
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        return []
    return [one.listener for one in _listening() if one.uid == uid]


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            children.setdefault(proc.state_and_parent(int(name))[1], []).append(int(name))
    found: list[int] = []
    waiting = [pid]
    while waiting and len(found) < PROCESSES_MAX:
        more = children.get(waiting.pop(), [])
        found += more
        waiting += more
    return found


def _sockets(pid: int) -> list[str]:
    """The inodes of a process's sockets. Raises PermissionError."""
    found = []
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError:
        return []  # it has ended meanwhile
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            found.append(target[8:-1])
    return found


def _listening() -> list[_Open]:
    found = []
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{table}", encoding="ascii") as file:
                next(file, "")
                for line in file:
                    fields = line.split()
                    if fields[3] == LISTENING:
                        found.append(_Open(_listener(fields[1]), int(fields[7]), fields[9]))
                    if len(found) >= LISTENERS_MAX:
                        return found
        except OSError:
            continue  # a machine without IPv6
    return found


def _listener(text: str) -> Listener:
    """One address, as in /proc/net/tcp: each group of four bytes is in the machine's order."""
    digits, _, port = text.partition(":")
    groups = [int(digits[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(digits), 8)]
    raw = b"".join(groups)
    everywhere = not any(raw)
    if len(raw) == 16 and raw[:12] == bytes(10) + b"\xff\xff":
        raw = raw[12:]  # IPv4, through an IPv6 socket
    if everywhere:
        return Listener("127.0.0.1", int(port, 16), everywhere=True)
    address = socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
    return Listener(address, int(port, 16), everywhere=False)
