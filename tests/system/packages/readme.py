"""README's section Install as lines for hosts, and three bare Debians on one network that it is typed into."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from chaos.net import Net

from system.lab import debian
from system.lab.debian import Host

README = Path(__file__).parents[3] / "README.md"
HOSTS = ["edge-1", "edge-2", "edge-3"]

# Which hosts, and what is typed there.
Line = tuple[list[str], str]


def blocks() -> list[list[Line]]:
    """The blocks of commands in the section: for each line its hosts and itself."""
    section = README.read_text().partition("\n## Install\n")[2].partition("\n## ")[0]
    found = []
    for block in re.findall(r"```console\n(.*?)```", section, re.DOTALL):
        lines = re.findall(r"^([a-z0-9, -]*)[#$] (.*)$", block, re.MULTILINE)
        found.append([([host.strip() for host in hosts.split(",") if host.strip()], line) for hosts, line in lines])
    return found


ONE, THREE, FIRST_RUN = blocks()


@contextmanager
def three_hosts(image: Path, package: Path, others: Sequence[str] = ()) -> Iterator[tuple[Net, dict[str, Host]]]:
    """Three machines on one network, whose administrator can reach each from the others by ssh. ``others``: further
    places in the network, without a machine.
    """
    net = Net([*HOSTS, *others]).up()
    try:
        with ExitStack() as stack, ThreadPoolExecutor(len(HOSTS)) as pool:
            booting = [debian.booted(image, name, net.netns(name)) for name in HOSTS]
            found = dict(zip(HOSTS, pool.map(stack.enter_context, booting), strict=True))
            known = "".join([f"{net.address(name)} {name}\n" for name in net.hosts])
            first = found["edge-1"]
            first.shell("mkdir -p ~/.ssh; ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519")
            key = {name: first.file(f"/root/.ssh/{name}").read_text() for name in ("id_ed25519", "id_ed25519.pub")}
            for host in found.values():
                host.put(package)
                host.file("/etc/hosts").write_text(f"127.0.0.1 localhost\n{known}")
                host.shell("mkdir -p ~/.ssh && umask 077 && touch ~/.ssh/id_ed25519 && systemctl start ssh")
                host.file("/root/.ssh/id_ed25519").write_text(key["id_ed25519"])
                host.file("/root/.ssh/authorized_keys").write_text(key["id_ed25519.pub"])
                host.file("/root/.ssh/config").write_text("StrictHostKeyChecking accept-new\n")
            yield net, found
    finally:
        net.down()


def type_into(hosts: dict[str, Host], lines: Sequence[Line]) -> None:
    """Type the lines, each into its hosts."""
    for names, line in lines:
        for name in names:
            began = time.monotonic()
            hosts[name].shell(line)
            print(f"{time.monotonic() - began:5.1f} s  {name}# {line}")
