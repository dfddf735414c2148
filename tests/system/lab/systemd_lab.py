"""A throw-away machine: a real systemd as PID 1 of its own namespaces, over a copy-on-write view of this machine or of
another root directory.

Files that are written inside the lab do not survive. The lab does not touch this machine's own systemd, if there is
one. The lab needs root, Linux namespaces, overlayfs and the systemd package. It boots in about a second. A missing
component is an error that names the component, never a reason to skip a test.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

BOOT_TIMEOUT_S = 90.0
COMMAND_TIMEOUT_S = 120.0
SYSTEMD = "/lib/systemd/systemd"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Where the lab finds this Python and this source. Both may be in /root, which a service's user may not enter.
PYTHON_HOME = "/opt/lab/python"
SITE_PACKAGES = "/opt/lab/site-packages"
SOURCE = "/opt/lab/source"

# Units that would change the kernel or wait for hardware.
MASKED = """
    systemd-sysctl.service systemd-modules-load.service systemd-remount-fs.service systemd-udevd.service
    systemd-timesyncd.service systemd-update-utmp.service systemd-firstboot.service systemd-sysusers.service
    systemd-resolved.service systemd-networkd.service systemd-tmpfiles-setup-dev.service apt-daily.service
    apt-daily-upgrade.service e2scrub_all.service sys-kernel-debug.mount sys-kernel-tracing.mount
    sys-kernel-config.mount sys-fs-fuse-connections.mount dev-hugepages.mount dev-mqueue.mount tmp.mount
    apt-daily.timer apt-daily-upgrade.timer man-db.timer
    logrotate.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer
"""

# Services that this machine happens to have.
MASKED_HERE = "rabbitmq-server.service redis-server.service epmd.service epmd.socket"

# Runs inside the new namespaces and becomes systemd. $S: our directory, $LOWER: the root directory that is copied on
# write, $BINDS: "source:target" pairs.
INIT = r"""
set -e
R=$S/root
mkdir -p "$R"; mount -t tmpfs -o mode=755 tmpfs "$R"; mkdir "$R/upper" "$R/work" "$R/root"
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$R/upper,workdir=$R/work" "$R/root"
cd "$R/root"
mkdir -p etc/systemd/system etc/systemd/journald.conf.d run tmp proc sys dev
for unit in $MASKED; do ln -sfn /dev/null "etc/systemd/system/$unit"; done
printf '[Journal]\nStorage=volatile\nRateLimitIntervalSec=0\nAudit=no\nForwardToConsole=no\nReadKMsg=no\n' \
    > etc/systemd/journald.conf.d/lab.conf
rm -f etc/machine-id; printf %s "$MACHINE_ID" > etc/machine-id
hostname "$NAME"; echo "$NAME" > etc/hostname; : > etc/fstab
rm -f etc/hosts; printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$NAME" > etc/hosts
mount -t proc proc proc; mount --bind proc/sys proc/sys; mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev; mkdir dev/pts dev/shm
for node in null zero full random urandom tty; do touch dev/$node; mount --bind /dev/$node dev/$node; done
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts; ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for std in 0:stdin 1:stdout 2:stderr; do ln -s /proc/self/fd/${std%:*} dev/${std#*:}; done
mount -t tmpfs -o mode=1777 tmpfs dev/shm; mount -t tmpfs -o mode=755 tmpfs run; mount -t tmpfs -o mode=1777 tmpfs tmp
for pair in $BINDS; do
    mkdir -p "./${pair#*:}"; mount --bind "${pair%%:*}" "./${pair#*:}"; mount -o remount,bind,ro "./${pair#*:}"
done
ip link set lo up
mkdir -p .old; pivot_root . .old; umount -l /.old; rmdir /.old 2>/dev/null || true
exec env -i container=lab PATH="$TARGET_PATH" "$SYSTEMD" --system systemd.unit=basic.target </dev/null
"""


class SystemdLab:
    """One throw-away machine; a context manager. ``root`` is its file system, seen from outside.

    ``lower``: another root directory, with a systemd in it; this Python and this source are not in that machine.
    ``netns``: the name of a network namespace for it [default: a new one that is connected to nothing].
    """

    def __init__(self, name: str = "edge-1", *, lower: str = "/", netns: str = "") -> None:
        self.name = name
        self._lower, self._netns = lower, netns
        self.python = f"{PYTHON_HOME}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
        self._directory = Path(tempfile.mkdtemp(prefix="systemd-lab-"))
        self._binds = {
            sys.base_prefix: PYTHON_HOME,
            sysconfig.get_paths()["purelib"]: SITE_PACKAGES,
            str(Path(__file__).parents[3]): SOURCE,
        }
        if lower != "/":
            self._binds = {}
        self._cgroup: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        try:
            self._boot()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def root(self) -> Path:
        """The machine's / as a path outside of it."""
        return Path(f"/proc/{self._pid}/root")

    @property
    def environment(self) -> dict[str, str]:
        """The environment that a unit needs to run this Python with this source."""
        return {"PYTHONHOME": PYTHON_HOME, "PYTHONPATH": f"{SOURCE}:{SITE_PACKAGES}", "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command inside the machine; returns its output without the white space around it."""
        enter = ["nsenter", "-t", str(self._pid), "-m", "-u", "-i", "-n", "-p", "-C"]
        clean = ["env", "-i", f"PATH={PATH}", "HOME=/root", "LANG=C.UTF-8", "TERM=dumb"]
        done = subprocess.run(
            [*enter, *clean, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Properties of a unit."""
        lines = self.run("systemctl", "show", unit, "-p", ",".join(properties)).splitlines()
        return dict(line.split("=", 1) for line in lines)

    def until(self, true: Callable[[], object], *, timeout_s: float = 60.0, unit: str = "coordd") -> None:
        """Poll until ``true`` returns a true value; after the timeout, fails with the unit's status and log."""
        end = time.monotonic() + timeout_s
        while not true():
            if time.monotonic() > end:
                status = self.run("systemctl", "status", "--no-pager", "-n", "60", unit, check=False)
                raise AssertionError(f"not within {timeout_s:g} s\n{status}")
            time.sleep(0.05)

    def power_off(self) -> None:
        """Shut the machine down in order; returns when the machine is off."""
        assert self._process is not None
        self.run("systemctl", "poweroff", check=False)
        self._process.wait(timeout=BOOT_TIMEOUT_S)

    def down(self) -> None:
        """End the machine at once, as a power cut would. May be called again."""
        pid, self._pid = self._pid, 0
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # the kernel then ends all other processes of the machine
        process, self._process = self._process, None
        if process is not None:
            if not pid:
                process.kill()
            process.wait(timeout=30)
        if self._cgroup is not None and self._cgroup.exists():
            for path, _, _ in os.walk(self._cgroup, topdown=False):
                os.rmdir(path)
        if self._directory.exists():
            shutil.rmtree(self._directory)

    def _boot(self) -> None:
        self._check()
        self._cgroup = _own_cgroup() / self._directory.name
        self._cgroup.mkdir()
        environ = {
            "PATH": PATH,
            "S": str(self._directory),
            "NAME": self.name,
            "LOWER": self._lower,
            "MASKED": " ".join([*MASKED.split(), *(MASKED_HERE.split() if self._lower == "/" else [])]),
            "BINDS": " ".join(f"{source}:{target}" for source, target in self._binds.items()),
            "MACHINE_ID": os.urandom(16).hex(),
            "TARGET_PATH": PATH,
            "SYSTEMD": SYSTEMD,
        }
        join = f"echo $$ > {self._cgroup}/cgroup.procs; "
        enter = f"nsenter --net=/run/netns/{self._netns} " if self._netns else ""
        namespaces = "--mount --uts --ipc --pid --cgroup --propagation private --fork --kill-child"
        namespaces += "" if self._netns else " --net"
        log = self._directory / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ["sh", "-c", join + f'exec {enter}unshare {namespaces} sh -c "$1"', "sh", INIT],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        end = time.monotonic() + BOOT_TIMEOUT_S
        while not self._is_up(children):
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the systemd lab did not boot:\n{log.read_text(errors='replace')}")
            time.sleep(0.02)

    def _is_up(self, children: Path) -> bool:
        with contextlib.suppress(OSError, ValueError):
            pid = int(children.read_text())
            if Path(f"/proc/{pid}/comm").read_text() == "systemd\n":
                self._pid = pid
                return self.run("systemctl", "is-system-running", check=False) in ("running", "degraded")
        return False

    def _check(self) -> None:
        if os.geteuid() != 0:
            raise RuntimeError("the systemd lab needs root: it makes namespaces and mounts")
        missing = [program for program in ("unshare", "nsenter", "ip", "pivot_root") if not shutil.which(program)]
        if not os.path.exists(SYSTEMD):
            missing.append(SYSTEMD)
        if missing:
            raise RuntimeError(
                f"the systemd lab needs {', '.join(missing)}: apt-get install systemd util-linux iproute2"
            )


def _own_cgroup() -> Path:
    """Our cgroup in the version 2 hierarchy. The lab runs below it, so that our limits also hold for the lab."""
    mount = Path("/sys/fs/cgroup/unified" if os.path.exists("/sys/fs/cgroup/unified") else "/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return mount / line.removeprefix("0::").lstrip("/")
    raise RuntimeError("the systemd lab needs cgroups of version 2")
