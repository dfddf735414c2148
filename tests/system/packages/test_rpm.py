"""The RPM package, installed by the real rpm. The machine is a Debian; rpm does not know its packages (`--nodeps`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import coordd
from packages import rpm, wheelhouse
from system.lab import debian
from system.lab.debian import Host
from system.lab.processes import until

# Runs until a file is there.
LONG = """\
on_lost = "hold"
[command]
argv = ["/bin/sh", "-c", "until [ -e ~/$COORDD_RUN ]; do sleep 0.1; done; exit 3"]
"""
LEDGER = "/var/lib/coordd/ledger.db"
PRAGMA = f'python3 -c \'import sqlite3; sqlite3.connect("{LEDGER}").execute("PRAGMA user_version = {{}}")\''


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two builds of this source tree: the second one is an upgrade for rpm."""
    to = tmp_path_factory.mktemp("rpm")
    house = wheelhouse.wheelhouse(to / "wheelhouse")
    return [rpm.build(house, to, release) for release in (1, 2)]


@pytest.fixture(scope="module")
def host(image: Path, builds: list[Path]) -> Iterator[Host]:
    with debian.booted(image) as host:
        host.shell("apt-get -qq install -y python3 rpm")
        for build in builds:
            host.put(build)
        yield host


@pytest.mark.hosts
def test_an_rpm_is_installed_upgraded_over_a_running_job_and_removed(host: Host, builds: list[Path]) -> None:
    first, second = [build.name for build in builds]
    jobs = host.file("/etc/coordd/jobs.d")
    jobs.mkdir(parents=True)
    host.file("/etc/coordd/coordd.toml").write_text("")
    (jobs / "long.toml").write_text(LONG)

    host.shell(f"rpm --install --nodeps {first}")
    assert host.is_active(), "its configuration was there already"
    assert host.ctl("status")["version"] == coordd.__version__
    assert host.shell("rpm --verify --nodeps coordd", check=False) == "", "every file is as it was packed"
    host.shell("coordctl run trigger long --id kept")
    until(lambda: host.run_of("long#kept")["state"] == "started")

    pid = host.main_pid()
    host.shell(f"rpm --upgrade --nodeps {second}")
    assert host.is_active()
    assert host.main_pid() != pid
    assert host.run_of("long#kept")["state"] == "started"

    schema = host.ctl("ledger", "status")["schema"]
    host.shell(f"systemctl stop coordd; {PRAGMA.format(schema + 1)}")
    said = host.fails(f"rpm --upgrade --nodeps --oldpackage {first}")
    assert f"the ledger {LEDGER} has schema {schema + 1}" in said
    assert "Nothing was changed" in said
    assert host.shell("rpm --query coordd").strip() == second.removesuffix(".rpm")
    host.shell(f"{PRAGMA.format(schema)}; systemctl start coordd")

    host.file("/var/lib/coordd/long#kept").touch()
    until(lambda: host.run_of("long#kept")["state"] == "failure")
    found = host.run_of("long#kept")
    assert (found["exit_code"], found["attempt"]) == (3, 0)

    host.shell("rpm --erase --nodeps coordd")
    assert not host.is_active()
    assert not host.file("/opt/coordd").exists()
    assert not host.file("/usr/bin/coordd").exists()
    assert host.file("/etc/coordd/coordd.toml").exists()
    assert host.file(LEDGER).exists()
