"""A small network: namespaces on one bridge. The way between two hosts can be cut in one direction or in both.

A direction is cut at the sender: the sender's neighbour entry then names a network card that does not exist. Packets
leave and are lost silently. A cut needs only iproute2, and no packet filter.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

NET = "10.91.0"
NOBODY = "02:00:00:00:00:00"
PREFIX = "cdc"
ROOT = Path("/tmp")

Way = tuple[str, str]  # from, to


def ip(*words: str, batch: Sequence[str] = ()) -> str:
    """The command ``ip``, or many of its commands at once."""
    argv = ["ip", *words, *(["-batch", "-"] if batch else [])]
    done = subprocess.run(
        argv,
        input="\n".join(batch) or None,
        stdin=None if batch else subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise OSError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


class Net:
    """Hosts by their names. ``home`` is a directory for all files of this lab. It is removed with the lab."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.lab = f"{PREFIX}{os.getpid()}"
        self.home = ROOT / self.lab
        self.hosts = list(hosts)
        self._cuts: Counter[Way] = Counter()  # faults may overlap: a way is open if no fault cuts it
        self._claim: socket.socket | None = None

    def netns(self, host: str) -> str:
        return f"{self.lab}-{host}"

    def address(self, host: str) -> str:
        return f"{NET}.{self.hosts.index(host) + 1}"

    def up(self) -> Net:
        """Create everything. Remains of an earlier run that was killed are removed first."""
        sweep()
        self._claim = _claimed(self.lab)
        self.home.mkdir()
        switch = self.netns("switch")
        for name in (switch, *[self.netns(host) for host in self.hosts]):
            ip("netns", "add", name)
        ip("-n", switch, batch=["link add br0 type bridge", "link set br0 up"])
        for number, host in enumerate(self.hosts):
            port = f"p{number}"
            peer = f"name eth0 netns {self.netns(host)} address {self._card(host)}"
            ip("-n", switch, batch=[f"link add {port} type veth peer {peer}", f"link set {port} master br0 up"])
            here = ["link set lo up", f"addr add {self.address(host)}/24 dev eth0", "link set eth0 up"]
            ip("-n", self.netns(host), batch=here)
        self._lead([(here, there) for here in self.hosts for there in self.hosts if here != there])
        return self

    def down(self) -> None:
        """Remove the network, with every process in it."""
        remove(self.lab)
        if self._claim is not None:
            self._claim.close()

    # ---- cuts

    def cut(self, ways: Iterable[Way]) -> None:
        """Let no packet pass on these ways. Connections are not closed."""
        chosen = list(ways)
        self._cuts.update(chosen)
        self._lead(chosen)

    def heal(self, ways: Iterable[Way]) -> None:
        """Take back one cut of each way."""
        chosen = list(ways)
        self._cuts.subtract(chosen)
        self._lead(chosen)

    def heal_all(self) -> None:
        ways = list(self._cuts)
        self._cuts.clear()
        self._lead(ways)

    def _lead(self, ways: Iterable[Way]) -> None:
        entries: dict[str, list[str]] = {}
        for here, there in ways:
            card = NOBODY if self._cuts[here, there] > 0 else self._card(there)
            entry = f"neigh replace {self.address(there)} lladdr {card} dev eth0 nud permanent"
            entries.setdefault(here, []).append(entry)
        for here, batch in entries.items():
            ip("-n", self.netns(here), batch=batch)

    def _card(self, host: str) -> str:
        return f"02:00:00:00:01:{self.hosts.index(host) + 1:02x}"


def both_ways(some: Iterable[str], others: Iterable[str]) -> list[Way]:
    """Every way between the two groups."""
    others = list(others)
    return [way for one in some for other in others for way in ((one, other), (other, one))]


# ---- removal


def sweep() -> None:
    """Remove the labs of earlier runs whose process has ended."""
    names = {name.partition("-")[0] for name in _namespaces()} | {path.name for path in ROOT.glob(f"{PREFIX}[0-9]*")}
    for lab in names:
        if re.fullmatch(rf"{PREFIX}\d+", lab) and (claim := _claimed(lab)):
            remove(lab)
            claim.close()


def remove(lab: str) -> None:
    """Remove the processes, the namespaces, the mounts and the directory of one lab."""
    ours = [name for name in _namespaces() if name.startswith(f"{lab}-")]
    for name in ours:
        while pids := ip("netns", "pids", name).split():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        ip("netns", "del", name)
    home = ROOT / lab
    for line in Path("/proc/mounts").read_text().splitlines():
        target = line.split()[1]
        if target.startswith(f"{home}/"):
            subprocess.run(["umount", "--lazy", target], check=True)
    shutil.rmtree(home, ignore_errors=True)


def _namespaces() -> list[str]:
    return [line.split()[0] for line in ip("netns", "list").splitlines() if line]


def _claimed(lab: str) -> socket.socket | None:
    """Lock a lab's name until this process ends; None if another process has it."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0coordd-chaos-{lab}")
    except OSError:
        claim.close()
        return None
    return claim
