"""The life of an installation on a bare Debian: the daemon is replaced under a running job, and the job runs once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import coordd
from system.lab import debian
from system.lab.debian import Host
from system.lab.processes import until

OLDER, NEWER, MIGRATES, REFUSES = "0.0.9", "99.1", "99.2", "99.3"

# Says that it was launched, and runs until a file is there.
LONG = """\
overlap = "allow"
on_lost = "hold"
[command]
argv = ["/bin/sh", "-c", "echo $COORDD_RUN >> ~/launched; until [ -e ~/$COORDD_RUN ]; do sleep 0.1; done; exit 3"]
"""
# The same in a unit of its own, as another user.
UNIT = """\
run_as = "etl"
on_lost = "hold"
[command]
argv = ["/bin/sh", "-c", "until [ -e /srv/$COORDD_RUN ]; do sleep 0.1; done; exit 3"]
"""

# A purge is not to blame for what else changes there.
NOT_COMPARED = ("/proc", "/sys", "/tmp", "/var/log", "/var/cache")

CONFIG = '[metrics]\ntextfile = "/var/lib/coordd/metrics.prom"\n'


# What the other versions do differently.
DIFFERENT: dict[str, dict[str, Any]] = {OLDER: {}, NEWER: {}, MIGRATES: {"schema": 2}, REFUSES: {"refuses": "metrics"}}


class Site:
    """One machine with coordd, its configuration and its jobs."""

    def __init__(self, host: Host, package: Path) -> None:
        self.host, self.package = host, package

    def package_of(self, version: str) -> str:
        """The name of a version's package, in root's home. It is made when it is first asked for."""
        path = debian.path_of(self.package, version)
        if not path.exists():
            debian.other_version(self.package, version, **DIFFERENT[version])
        self.host.put(path)
        return path.name

    def install(self, version: str) -> str:
        """The line of shell that installs a version."""
        return f"apt-get -qq install -y --allow-downgrades ./{self.package_of(version)}"

    def with_version(self, version: str) -> None:
        """However the machine was left: this version runs there, by its configuration."""
        jobs = self.host.file("/etc/coordd/jobs.d")
        jobs.mkdir(parents=True, exist_ok=True)
        self.host.file("/etc/coordd/coordd.toml").write_text(CONFIG)
        (jobs / "long.toml").write_text(LONG)
        if self.host.version() != f"{version} installed":
            self.host.shell(self.install(version))
        assert self.host.is_active()

    def started(self, ident: str) -> str:
        """Start a run that goes on; returns its id."""
        self.host.shell(f"coordctl run trigger long --id {ident}")
        run = f"long#{ident}"
        until(lambda: self.host.run_of(run)["state"] == "started")
        return run

    def unit_of(self, run: str) -> dict[str, str]:
        """A run in a unit of its own: the unit's name, and which start of it that is."""
        name = self.host.shell(
            f"systemctl list-units --plain --no-legend 'coordd-run@{run.replace('#', '_')}.*'"
        ).split()[0]
        return {"name": name, **self.host.lab.show(name, "InvocationID", "MainPID", "ActiveState")}

    def ends_as_it_began(self, run: str, go: str = "/var/lib/coordd") -> None:
        """The run still lives: it is one launch, attempt 0, and its program's own exit code. ``go``: where the file
        belongs that lets it end.
        """
        assert self.host.run_of(run)["state"] == "started"
        self.host.file(f"{go}/{run}").touch()
        until(lambda: self.host.run_of(run)["state"] == "failure")
        found = self.host.run_of(run)
        assert (found["exit_code"], found["attempt"]) == (3, 0)
        if go == "/var/lib/coordd":
            assert self.host.file("/var/lib/coordd/launched").read_text().splitlines().count(run) == 1


@pytest.fixture(scope="module")
def site(image: Path, package: Path) -> Iterator[Site]:
    """Nothing is installed yet, but what the package depends on."""
    with debian.booted(image) as host:
        host.shell("apt-get -qq install -y python3")
        yield Site(host, package)


def test_an_upgrade_and_a_downgrade_over_a_running_job(site: Site) -> None:
    site.with_version(OLDER)
    config = site.host.file("/etc/coordd/coordd.toml").read_text()
    run = site.started("kept")

    for version in (coordd.__version__, OLDER):
        before = site.host.main_pid()
        site.host.shell(site.install(version))
        assert site.host.is_active()
        assert site.host.main_pid() != before
        assert site.host.ctl("status")["version"] == version
        assert site.host.ctl("status")["runs"]["active"] == 1
        assert site.host.file("/etc/coordd/coordd.toml").read_text() == config
    site.ends_as_it_began(run)


def test_a_run_in_a_unit_goes_on_through_an_upgrade_a_downgrade_and_a_removal(site: Site) -> None:
    site.with_version(OLDER)
    site.host.shell("id etl || useradd etl; echo etl > /etc/coordd/run_as.allow")
    site.host.file("/etc/coordd/jobs.d/unit.toml").write_text(UNIT)
    site.host.shell("coordctl reload; coordctl run trigger unit --id kept")
    run = "unit#kept"
    until(lambda: site.host.run_of(run)["state"] == "started")
    unit = site.unit_of(run)

    for version in (coordd.__version__, OLDER):
        site.host.shell(site.install(version))
        assert site.host.ctl("status")["version"] == version
        assert site.unit_of(run) == unit
    said = site.host.shell("apt-get -qq remove -y coordd 2>&1")
    [left] = re.findall(r"(\d+) processes of runs go on until their runs end", said)
    assert int(left) >= len(("runner", "watcher", "supervisor", "sh")), said
    site.host.shell("sleep 20")  # longer than the unit's watchdog waits
    assert site.host.shell(f"systemctl is-active {unit['name']}") == "active"
    site.host.shell(site.install(coordd.__version__))
    assert site.unit_of(run)["InvocationID"] == unit["InvocationID"]
    assert not site.host.file("/run/systemd/system/coordd-run@.service").exists(), "the package's own counts again"
    site.ends_as_it_began(run, "/srv")
    site.host.file("/etc/coordd/jobs.d/unit.toml").unlink()
    site.host.file("/etc/coordd/run_as.allow").unlink()


@pytest.mark.hosts
def test_a_daemon_that_was_stopped_stays_stopped(site: Site) -> None:
    site.with_version(OLDER)
    site.host.shell("systemctl stop coordd")
    site.host.shell(site.install(coordd.__version__))

    assert not site.host.is_active()
    site.host.shell("systemctl start coordd")


@pytest.mark.hosts
def test_an_upgrade_that_is_killed_while_it_unpacks_is_mended_by_another_one(site: Site) -> None:
    site.with_version(OLDER)
    run = site.started("unpacking")
    modules = site.host.file("/opt/coordd/lib")
    site.host.shell(f"setsid -f dpkg -i ./{site.package_of(NEWER)} >/dev/null 2>&1")
    until(lambda: any(modules.rglob("*.dpkg-new")))
    site.host.shell("pkill -KILL -x dpkg; pkill -KILL -x dpkg-deb; sleep 0.2", check=False)

    assert "installed" not in site.host.version().split()
    site.host.shell(f"dpkg --configure -a; {site.install(NEWER)}")
    assert site.host.version() == f"{NEWER} installed"
    assert site.host.is_active()
    site.ends_as_it_began(run)


def test_an_upgrade_that_is_killed_while_it_configures_is_mended_by_dpkg(site: Site) -> None:
    site.with_version(OLDER)
    run = site.started("configuring")
    policy = site.host.file("/usr/sbin/policy-rc.d")  # the package asks it before it starts the daemon
    policy.write_text("#!/bin/sh\npkill -KILL -x dpkg; kill -KILL $PPID\n")
    policy.chmod(0o755)
    site.host.fails(f"dpkg -i ./{site.package_of(NEWER)}")
    policy.unlink()

    assert site.host.version() == f"{NEWER} half-configured"
    assert not site.host.is_active()
    site.host.shell("dpkg --configure -a")
    assert site.host.version() == f"{NEWER} installed"
    assert site.host.is_active()
    site.ends_as_it_began(run)


@pytest.mark.hosts
def test_an_upgrade_that_refuses_the_configuration_stops_there_and_says_so(site: Site) -> None:
    site.with_version(coordd.__version__)
    run = site.started("refused")
    said = site.host.fails(site.install(REFUSES))

    assert "[metrics] is not available in this version" in said
    assert f"cannot be used by version {REFUSES}" in said
    assert not site.host.is_active()
    site.host.file("/etc/coordd/coordd.toml").write_text("")
    site.host.shell("dpkg --configure -a")
    assert site.host.ctl("status")["version"] == REFUSES
    site.ends_as_it_began(run)


def test_a_downgrade_below_the_ledgers_schema_is_refused_by_name_and_loses_nothing(site: Site) -> None:
    site.with_version(coordd.__version__)
    run = site.started("migrated")
    site.host.shell(site.install(MIGRATES))
    pid = site.host.main_pid()
    assert site.host.ctl("ledger", "status")["schema"] == 2

    said = site.host.fails(site.install(coordd.__version__))
    assert "the ledger /var/lib/coordd/ledger.db has schema 2" in said
    assert f"coordd {coordd.__version__} knows schema 1" in said
    assert "Nothing was changed" in said
    assert site.host.version() == f"{MIGRATES} installed"
    assert site.host.is_active()
    assert site.host.main_pid() != pid
    site.ends_as_it_began(run)


def test_a_purge_leaves_nothing_but_data(site: Site) -> None:
    site.host.shell("apt-get -qq purge -y coordd; rm -rf /etc/coordd /var/lib/coordd")
    files = f"find / -xdev \\( -path {' -o -path '.join(NOT_COMPARED)} \\) -prune -o -print"
    before = set(site.host.shell(files).splitlines())
    site.with_version(coordd.__version__)
    site.host.shell("coordctl run trigger long --id last")
    site.host.file("/var/lib/coordd/long#last").touch()
    until(lambda: site.host.run_of("long#last")["state"] == "failure")

    site.host.shell("apt-get -qq remove -y coordd")
    assert site.host.shell("systemctl is-active coordd", check=False) != "active"
    site.host.shell("apt-get -qq purge -y coordd")
    left = set(site.host.shell(files).splitlines()) - before
    kept = ("/etc/coordd", "/var/lib/coordd", "/var/lib/systemd", "/var/lib/dpkg", "/var/lib/apt")
    assert sorted(path for path in left if not path.startswith(kept)) == []
    assert {"/etc/coordd/coordd.toml", "/etc/coordd/jobs.d/long.toml", "/var/lib/coordd/ledger.db"} <= left
    assert not site.host.file("/run/coordd").exists()
    assert site.host.shell("systemctl --all list-units 'coordd*' --no-legend", check=False) == ""
