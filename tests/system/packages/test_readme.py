"""README's section Install, line by line and nothing else, on bare Debians with a real systemd: one, and three. The
commands are counted: each program of each line, on each host.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from chaos.net import Net

import coordd
from system.lab import debian
from system.lab.debian import Host
from system.lab.processes import until

README = Path(__file__).parents[3] / "README.md"
HOSTS = ["edge-1", "edge-2", "edge-3"]
COMMANDS_MAX = 10
LINES_MAX = 5


def blocks() -> list[list[tuple[list[str], str]]]:
    """The blocks of commands in README's section Install: for each line its hosts and itself."""
    section = README.read_text().partition("\n## Install\n")[2].partition("\n## ")[0]
    found = []
    for block in re.findall(r"```console\n(.*?)```", section, re.DOTALL):
        lines = re.findall(r"^([a-z0-9, -]*)[#$] (.*)$", block, re.MULTILINE)
        found.append([([host.strip() for host in hosts.split(",") if host.strip()], line) for hosts, line in lines])
    return found


def programs(line: str) -> int:
    """The number of programs that a line of shell starts."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return 1 + sum([bool(set(word) <= set("|&;")) for word in lexer])


ONE, THREE, FIRST_RUN = blocks()


def test_the_section_has_five_lines_for_one_machine_and_for_three() -> None:
    assert len(ONE + FIRST_RUN) <= LINES_MAX
    assert len(THREE) <= LINES_MAX
    assert [hosts for hosts, _ in ONE + FIRST_RUN] == [[]] * len(ONE + FIRST_RUN)


def test_three_hosts_need_ten_commands_at_the_most() -> None:
    counted = [len(hosts) * programs(line) for hosts, line in THREE] + [programs(line) for _, line in FIRST_RUN]

    assert sum(counted) <= COMMANDS_MAX


@pytest.mark.parametrize(("line", "count"), [("a b", 1), ("a | b", 2), ("a && b; c", 3), ("a 'x | y'", 1)])
def test_every_program_of_a_line_counts(line: str, count: int) -> None:
    assert programs(line) == count


def test_one_machine(image: Path, package: Path) -> None:
    with debian.booted(image) as host:
        host.put(package)
        said = host.shell(f"{ONE[0][1]} 2>&1")
        assert "there is no /etc/coordd/coordd.toml" in said
        assert not host.is_active(), "it waits for its configuration"
        assert host.shell("systemctl is-enabled coordd", check=False) == "disabled"

        for _, line in ONE[1:] + FIRST_RUN:
            host.shell(line)
        [run] = host.ctl("run", "list")
        assert (run["state"], run["attempt"]) == ("success", 0)
        assert host.shell(f"coordctl run logs '{run['id']}'") == "hello from edge-1"
        assert host.shell("coordd --version; coordctl --version").split()[1::2] == [coordd.__version__] * 2
        assert host.shell("getent group coordd-operators")
        assert host.shell("ls /usr/share/man/man1/coordctl.1.gz /usr/share/bash-completion/completions/coordctl")
        assert host.shell("dpkg --verify coordd") == "", "something was written below /opt/coordd"


def sees_all(host: Host) -> bool:
    alive: int = host.ctl("status")["members"]["alive"]
    return alive == len(HOSTS)


@pytest.fixture
def hosts(image: Path, package: Path) -> Iterator[dict[str, Host]]:
    """Three machines on one network, whose administrator can reach each from the others by ssh."""
    net = Net(HOSTS).up()
    try:
        with ExitStack() as stack, ThreadPoolExecutor(len(HOSTS)) as pool:
            booting = [debian.booted(image, name, net.netns(name)) for name in HOSTS]
            found = dict(zip(HOSTS, pool.map(stack.enter_context, booting), strict=True))
            known = "".join([f"{net.address(name)} {name}\n" for name in HOSTS])
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
            yield found
    finally:
        net.down()


def test_the_readme_takes_three_bare_hosts_to_a_run_that_is_launched_once(hosts: dict[str, Host]) -> None:
    for names, line in [*THREE, *[(["edge-3"], line) for _, line in FIRST_RUN]]:
        for name in names:
            began = time.monotonic()
            hosts[name].shell(line)
            print(f"{time.monotonic() - began:5.1f} s  {name}# {line}")

    runs = hosts["edge-1"].ctl("run", "list")
    assert [(run["job"], run["state"], run["attempt"]) for run in runs] == [("hello", "success", 0)]
    for host in hosts.values():
        assert host.ctl("run", "list") == runs, "one ledger"
        until(partial(sees_all, host))
    launched = [name for name, host in hosts.items() if list(host.file("/var/lib/coordd/logs/hello").glob("*.log"))]
    assert launched == [runs[0]["node"].partition(".")[0]]
    assert hosts["edge-2"].shell("stat -c '%a %U %G' /etc/coordd/keys.toml") == "640 root coordd"
