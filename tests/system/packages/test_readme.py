"""README's section Install, line by line and nothing else, on bare Debians with a real systemd: one, and three. The
commands are counted: each program of each line, on each host.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import coordd
from system.lab import debian
from system.lab.debian import Host
from system.lab.processes import until
from system.packages.readme import FIRST_RUN, HOSTS, ONE, THREE, three_hosts, type_into

COMMANDS_MAX = 10
LINES_MAX = 5


def programs(line: str) -> int:
    """The number of programs that a line of shell starts."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return 1 + sum([bool(set(word) <= set("|&;")) for word in lexer])


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
        units = next(one for one in host.ctl("doctor") if one["check"] == "units")
        assert units["state"] == "ok", f"polkit comes with the package: {units}"
        assert host.shell("ls /usr/share/man/man1/coordctl.1.gz /usr/share/bash-completion/completions/coordctl")
        assert host.shell("dpkg --verify coordd") == "", "something was written below /opt/coordd"


def sees_all(host: Host) -> bool:
    alive: int = host.ctl("status")["members"]["alive"]
    return alive == len(HOSTS)


@pytest.fixture
def hosts(image: Path, package: Path) -> Iterator[dict[str, Host]]:
    with three_hosts(image, package) as (_, found):
        yield found


def test_the_readme_takes_three_bare_hosts_to_a_run_that_is_launched_once(hosts: dict[str, Host]) -> None:
    type_into(hosts, [*THREE, *[(["edge-3"], line) for _, line in FIRST_RUN]])

    runs = hosts["edge-1"].ctl("run", "list")
    assert [(run["job"], run["state"], run["attempt"]) for run in runs] == [("hello", "success", 0)]
    for host in hosts.values():
        assert host.ctl("run", "list") == runs, "one ledger"
        until(partial(sees_all, host))
    launched = [name for name, host in hosts.items() if list(host.file("/var/lib/coordd/logs/hello").glob("*.log"))]
    assert launched == [runs[0]["node"].partition(".")[0]]
    assert hosts["edge-2"].shell("stat -c '%a %U %G' /etc/coordd/keys.toml") == "640 root coordd"
