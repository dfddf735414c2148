"""The packaged unit: checked by systemd's tools, and run on a separate systemd with a stand-in for the daemon."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from system.lab.systemd_lab import SITE_PACKAGES, SOURCE, SystemdLab

SYSTEMD = Path(__file__).parents[3] / "systemd"
UNIT = SYSTEMD / "coordd.service"
STANDIN = f"{SOURCE}/tests/system/lab/unit_standin.py"

# Maximum exposure level in `systemd-analyze security`, times ten.
EXPOSURE_MAX = 15


def directives() -> list[tuple[str, str]]:
    lines = [line for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return [(name, value) for name, _, value in (line.partition("=") for line in lines)]


class TestByTheTools:
    @pytest.fixture
    def unit(self, tmp_path: Path) -> Path:
        """The unit with a program that exists on this machine: systemd-analyze looks for the program."""
        copy = tmp_path / "coordd.service"
        copy.write_text(re.sub(r"(?m)^(Exec\w+)=\S+", r"\1=/bin/sleep", UNIT.read_text()))
        return copy

    def test_verify_has_nothing_to_say(self, unit: Path) -> None:
        done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
        assert done.stdout + done.stderr == ""
        assert done.returncode == 0

    def test_verify_would_say_something(self, unit: Path) -> None:
        unit.write_text(unit.read_text() + "\n[Service]\nProtectEverything=yes\n")
        done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
        assert "ProtectEverything" in done.stderr

    def test_exposure_is_low(self, unit: Path) -> None:
        done = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(unit)],
            capture_output=True,
            text=True,
            check=False,
        )
        found = re.search(r"Overall exposure level for coordd.service: ([\d.]+)", done.stdout)
        assert found, done.stderr
        assert float(found[1]) <= EXPOSURE_MAX / 10, done.stdout
        assert done.returncode == 0

    def test_every_line_of_hardening_has_its_reason(self) -> None:
        lines = UNIT.read_text().split("# ---- Hardening.")[1].split("[Install]")[0].splitlines()
        for above, line in pairwise(lines):
            if "=" in line and not line.startswith("#"):
                assert above.startswith("#"), f"{line} has no reason above it"

    def test_a_reload_can_fail(self) -> None:
        """ExecReload is not `kill -HUP`, which always succeeds: a signal cannot report that the daemon refused it."""
        assert dict(directives())["ExecReload"] == "/usr/bin/coordctl reload"

    def test_nothing_that_ends_or_breaks_spark(self) -> None:
        found = dict(directives())
        for name in ("MemoryDenyWriteExecute", "PrivateUsers", "ProcSubset", "PrivateNetwork", "RemoveIPC"):
            assert name not in found
        assert found["KillMode"] == "process"
        assert found["OOMPolicy"] == "continue"

    def test_sysusers_makes_user_and_group(self, tmp_path: Path) -> None:
        (tmp_path / "etc").mkdir()
        done = subprocess.run(
            ["systemd-sysusers", "--root", str(tmp_path), str(SYSTEMD / "sysusers.d-coordd.conf")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        passwd = (tmp_path / "etc/passwd").read_text()
        assert re.search(r"^coordd:x:\d+:\d+:coordd[^:]*:/var/lib/coordd:/usr/sbin/nologin$", passwd, re.MULTILINE)
        assert re.search(r"^coordd-operators:x:\d+:$", (tmp_path / "etc/group").read_text(), re.MULTILINE)

    def test_tmpfiles_is_understood(self) -> None:
        path = str(SYSTEMD / "tmpfiles.d-coordd.conf")
        done = subprocess.run(
            ["systemd-tmpfiles", "--clean", "--prefix=/nowhere", path], capture_output=True, check=True
        )
        assert done.stdout + done.stderr == b""


class Service:
    """The unit, installed in a lab, with a program in place of /usr/bin/coordd."""

    def __init__(self, lab: SystemdLab, exec_start: str, exec_reload: str = "/bin/kill -HUP $MAINPID") -> None:
        self.lab = lab
        etc = lab.root / "etc"
        (etc / "systemd/system/coordd.service").write_text(UNIT.read_text())
        for kind in ("sysusers", "tmpfiles"):
            (etc / f"{kind}.d").mkdir(exist_ok=True)
            (etc / f"{kind}.d/coordd.conf").write_text((SYSTEMD / f"{kind}.d-coordd.conf").read_text())
        lab.run("systemd-sysusers")
        lab.run("systemd-tmpfiles", "--create", "coordd.conf")
        environment = " ".join(f'"{name}={value}"' for name, value in lab.environment.items())
        self.drop_in(
            "lab",
            f"ExecStart=\nExecStart={exec_start}\nExecReload=\nExecReload={exec_reload}\nEnvironment={environment}\n"
            "WatchdogSec=5\nRestartSec=200ms",
        )

    def drop_in(self, name: str, settings: str) -> None:
        path = self.lab.root / "etc/systemd/system/coordd.service.d"
        path.mkdir(exist_ok=True)
        (path / f"{name}.conf").write_text(f"[Service]\n{settings}\n")
        self.lab.run("systemctl", "daemon-reload")

    def systemctl(self, *words: str, check: bool = True) -> str:
        return self.lab.run("systemctl", *words, "coordd", check=check)

    @property
    def main_pid(self) -> str:
        return self.lab.show("coordd", "MainPID")["MainPID"]

    @property
    def status(self) -> str:
        return self.lab.show("coordd", "StatusText")["StatusText"]

    @property
    def is_active(self) -> bool:
        return self.lab.show("coordd", "ActiveState")["ActiveState"] == "active"

    def signal(self, name: str) -> None:
        self.lab.run("kill", f"-{name}", self.main_pid)

    def restarted(self, old_pid: str) -> Callable[[], bool]:
        return lambda: self.is_active and self.main_pid not in ("0", old_pid)

    def kill_what_is_left(self) -> None:
        """Kill the processes that outlived the daemon."""
        kill = Path("/sys/fs/cgroup/system.slice/coordd.service/cgroup.kill")
        self.lab.run("sh", "-c", f"[ ! -e {kill} ] || echo 1 > {kill}")
        self.lab.until(lambda: not self.lab.run("sh", "-c", f"cat {kill.parent}/cgroup.procs 2>/dev/null || true"))

    def spawn(self, script: str) -> str:
        """Have the daemon start a shell script that outlives it; returns its pid."""
        run = self.lab.root / "run/coordd"
        (run / "started").unlink(missing_ok=True)
        (run / "command").write_text(json.dumps(["/bin/sh", "-c", script]))
        self.lab.run("chown", "coordd:", "/run/coordd/command")
        self.signal("USR1")
        self.lab.until((run / "started").exists)
        self.lab.until((run / "started").read_text)
        return (run / "started").read_text()

    def inside(self, script: str, *, timeout_s: float = 60.0) -> str:
        """Run a script where jobs run; returns its output and errors."""
        out = self.lab.root / "var/lib/coordd/out"
        out.unlink(missing_ok=True)
        self.spawn(f"cd /var/lib/coordd; ( {script} ) >out.part 2>&1; mv out.part out")
        self.lab.until(out.exists, timeout_s=timeout_s)
        return out.read_text().strip()


@pytest.fixture(scope="module")
def lab() -> Iterator[SystemdLab]:
    with SystemdLab() as made:
        yield made


@pytest.fixture(scope="module")
def installed(lab: SystemdLab) -> Service:
    return Service(lab, f"{lab.python} {STANDIN}")


@pytest.fixture
def service(installed: Service) -> Iterator[Service]:
    installed.systemctl("start")
    yield installed
    installed.systemctl("stop")
    installed.kill_what_is_left()
    installed.lab.run("systemctl", "reset-failed", check=False)


class TestOnSystemd:
    def test_it_becomes_active_as_its_own_user(self, service: Service) -> None:
        assert service.is_active
        assert service.status == "ready · 0 reloads"
        assert service.lab.run("ps", "-o", "user=,nlwp=", "-p", service.main_pid).split()[0] == "coordd"
        shown = service.lab.run("stat", "-c", "%a %U %n", "/run/coordd", "/var/lib/coordd", "/etc/coordd")
        assert shown.splitlines() == ["755 coordd /run/coordd", "750 coordd /var/lib/coordd", "755 root /etc/coordd"]

    def test_its_log_is_structured_in_the_journal(self, service: Service) -> None:
        def entries() -> list[dict[str, str]]:
            found = service.lab.run("journalctl", "-o", "json", "-u", "coordd", "COORDD_EVENT=node.started")
            return [json.loads(line) for line in found.splitlines()]

        service.lab.until(entries)
        entry = entries()[-1]
        assert entry["MESSAGE"] == "node.started node=edge-1 bus=amqp://guest:***@mq/"
        assert entry["COORDD_NODE"] == "edge-1"
        assert entry["PRIORITY"] == "6"
        assert entry["SYSLOG_IDENTIFIER"] == "coordd"

    def test_reload(self, service: Service) -> None:
        pid = service.main_pid
        service.systemctl("reload")
        service.lab.until(lambda: service.status == "ready · 1 reloads")
        assert service.main_pid == pid

    def test_a_daemon_that_makes_no_progress_is_restarted_with_its_stack_in_the_log(self, service: Service) -> None:
        service.drop_in("watchdog", "WatchdogSec=500ms")
        service.systemctl("restart")
        pid = service.main_pid
        service.signal("USR2")
        service.lab.until(service.restarted(pid))
        log = service.lab.run("journalctl", "-u", "coordd", "-o", "cat", "--no-pager")
        assert "Fatal Python error: Aborted" in log
        assert "unit_standin.py" in log
        service.drop_in("watchdog", "")

    def test_a_bad_configuration_is_not_tried_again(self, service: Service) -> None:
        service.systemctl("stop")
        marker = service.lab.root / "var/lib/coordd/bad-configuration"
        marker.touch()
        service.lab.run("systemctl", "start", "coordd", check=False)
        found = service.lab.show("coordd", "ActiveState", "ExecMainStatus", "NRestarts")
        assert found == {"ActiveState": "failed", "ExecMainStatus": "78", "NRestarts": "0"}
        marker.unlink()

    @pytest.mark.parametrize("how", ["killed", "stopped and started", "restarted"])
    def test_what_it_started_lives_on_with_all_it_holds(self, service: Service, how: str) -> None:
        runner = service.spawn(
            "echo spill > /tmp/spill; echo spill > /var/tmp/spill; echo shared > /dev/shm/coordd-test;"
            "echo here > /run/coordd/runner; exec tail -f /tmp/spill"
        )
        tmp = f"/proc/{runner}/root/tmp/spill"
        service.lab.until(lambda: service.lab.run("cat", "/run/coordd/runner", tmp, check=False) == "here\nspill")
        daemon = service.main_pid
        if how == "killed":
            service.signal("KILL")
            service.lab.until(service.restarted(daemon))
        elif how == "restarted":
            service.systemctl("restart")
        else:
            service.systemctl("stop")
            assert not service.is_active
            service.systemctl("start")
        assert service.main_pid != daemon
        assert service.lab.run("ps", "-o", "comm=", "-p", runner) == "tail"
        kept = ["/run/coordd/runner", "/dev/shm/coordd-test", tmp, f"/proc/{runner}/root/var/tmp/spill"]
        assert service.lab.run("cat", *kept).split() == ["here", "shared", "spill", "spill"]
        assert service.inside("cat /tmp/spill /run/coordd/runner").split() == ["spill", "here"]

    def test_jobs_are_fenced_in(self, service: Service) -> None:
        keys = service.lab.root / "etc/coordd/keys.toml"
        keys.write_text("keys")
        service.lab.run("systemd-tmpfiles", "--create", "coordd.conf")
        assert keys.stat().st_mode & 0o777 == 0o640
        tried = {
            "echo x > /etc/coordd/keys.toml": "Read-only file system",
            "echo x > /etc/coordd/x": "Read-only file system",
            "echo x > /usr/bin/x": "Read-only file system",
            "ls /home/": "Permission denied",
            "mkdir /sys/kernel/x": "Read-only file system",
            "echo 1 > /proc/sys/vm/swappiness": "Read-only file system",
            "date -s 2001-01-01": "Operation not permitted",
            "unshare --user true": "Operation not permitted",
            "hostname other": "must be root",
            "chrt -f 1 true": "Operation not permitted",
            "touch f; chmod u+s f": "Operation not permitted",
        }
        for command, answer in tried.items():
            assert answer in service.inside(f"LC_ALL=C {command}"), command
        assert service.inside("cat /etc/coordd/keys.toml") == "keys"
        assert service.inside("ls /proc | grep -x 1; ls /dev | grep -x mem; echo end") == "end"
        assert "NOTIFY_SOCKET" not in service.inside("env")
        assert service.inside("grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status").split() == [
            "CapEff:",
            "0000000000000000",
            "NoNewPrivs:",
            "1",
            "Seccomp:",
            "2",
        ]

    def test_the_temporary_directories_are_its_own(self, service: Service) -> None:
        (service.lab.root / "tmp/others-secret").write_text("x")
        assert service.inside("touch /tmp/ours; ls /tmp").splitlines().count("ours") == 1
        assert "others-secret" not in service.inside("ls /tmp")
        assert not (service.lab.root / "tmp/ours").exists()

    def test_a_run_can_have_a_cgroup_of_its_own(self, service: Service) -> None:
        script = (
            "G=/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup); mkdir $G/run-1;"
            "sleep 300 & echo $! > $G/run-1/cgroup.procs;"
            "cat $G/run-1/cgroup.procs | wc -l; echo 1 > $G/run-1/cgroup.kill; wait; rmdir $G/run-1; echo gone"
        )
        assert service.inside(script).splitlines()[-2:] == ["1", "gone"]

    def test_a_daemon_starts_while_a_run_sits_in_its_own_cgroup(self, service: Service) -> None:
        service.inside(
            "G=/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup); mkdir $G/run-1;"
            "setsid sleep 300 >/dev/null 2>&1 & echo $! > $G/run-1/cgroup.procs"
        )
        service.systemctl("restart")
        assert service.is_active
        assert service.lab.run("cat", "/sys/fs/cgroup/system.slice/coordd.service/run-1/cgroup.procs")

    def test_spark_submit_works(self, service: Service) -> None:
        (service.lab.root / "var/lib/coordd/job.py").write_text(
            "from pyspark import SparkContext\n"
            "print('sum', SparkContext().parallelize(range(10), 2).map(lambda n: n * n).sum())\n"
        )
        environment = " ".join(f"{name}={shlex.quote(value)}" for name, value in service.lab.environment.items())
        said = service.inside(
            f"{environment} SPARK_HOME={SITE_PACKAGES}/pyspark PYSPARK_PYTHON={service.lab.python}"
            f" /bin/bash {SITE_PACKAGES}/pyspark/bin/spark-submit --master 'local[2]'"
            " --conf spark.ui.enabled=false /var/lib/coordd/job.py",
            timeout_s=280.0,
        )
        assert "sum 285" in said, said


def test_a_stop_with_the_whole_machine_is_known_as_such() -> None:
    with SystemdLab("edge-2") as other:
        service = Service(other, f"{other.python} {STANDIN}")
        service.systemctl("start")
        said = os.open(other.root / "var/lib/coordd", os.O_RDONLY | os.O_DIRECTORY)  # works after the machine is off
        try:
            service.systemctl("stop")
            assert _read(said, "machine-is-stopping") == "False"
            service.systemctl("start")
            other.power_off()
            assert _read(said, "machine-is-stopping") == "True"
        finally:
            os.close(said)


def _read(directory: int, name: str) -> str:
    with open(os.open(name, os.O_RDONLY, dir_fd=directory), encoding="utf-8") as file:
        return file.read()
