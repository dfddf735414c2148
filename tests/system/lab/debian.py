"""A bare Debian, made by mmdebstrap, that boots in a SystemdLab; and packages of coordd in any version.

The packages that a test installs there with apt-get are downloaded when the image is made: the machines themselves are
in networks of their own.
"""

from __future__ import annotations

import contextlib
import json
import py_compile
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packages import deb, tree
from system.lab.systemd_lab import SystemdLab

# The release whose python3 is that of this test: the package is built for it.
RELEASE = {11: "bookworm", 13: "trixie"}

# The second line: what polkitd and Python recommend, and a machine has anyway. It takes long to install.
INSTALLED = (
    "systemd,systemd-sysv,dbus,openssh-server,iproute2,procps,"
    "ca-certificates,dbus-user-session,libpam-systemd,libglib2.0-data,shared-mime-info,xdg-user-dirs"
)
DOWNLOADED = "python3 redis-server polkitd rpm"
IMAGE_S = 900.0


def make_image(to: Path) -> Path:
    """A root directory with systemd and sshd, and neither Python, polkit nor Redis; returns its path."""
    release = RELEASE.get(sys.version_info.minor)
    if release is None:
        raise RuntimeError(f"no Debian release is known whose python3 is {tree.PYTHON}: add it to RELEASE")
    download = f'chroot "$1" apt-get -qq install -d -y --install-recommends {DOWNLOADED}'
    settings = 'echo force-unsafe-io > "$1/etc/dpkg/dpkg.cfg.d/lab"'
    done = subprocess.run(
        [
            *("mmdebstrap", "--mode=root", "--variant=minbase", f"--include={INSTALLED}"),
            *("--skip=cleanup/apt,cleanup/reproducible", f"--customize-hook={settings}"),
            *(f"--customize-hook={download}", release, str(to)),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=IMAGE_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"mmdebstrap has failed:\n{done.stderr[-3000:]}")
    return to


def other_version(package: Path, version: str, *, schema: int | None = None, refuses: str = "") -> Path:
    """The same package under another version. It is made from the built one, in seconds.

    ``schema``: the ledger's schema that this version migrates to; ``refuses``: a section of the configuration that it
    does not accept.
    """
    path = path_of(package, version)
    root = path.with_suffix("")
    subprocess.run(["dpkg-deb", "-R", str(package), str(root)], check=True)
    modules = root / f"opt/coordd/lib/{tree.PYTHON}/site-packages"
    _edit(modules / "coordd/__init__.py", r'__version__ = "[^"]*"', f'__version__ = "{version}"')
    if schema is not None:
        _edit(
            modules / "coordd/adapters/ledger/sqlite_rows.py",
            r"(?m)^# Tables that were added",
            _MIGRATION * (schema - 1),
        )
    if refuses:
        _edit(modules / "coordd/config/settings.py", r"(?m)^LATER = \(", f'LATER = ("{refuses}", ')
    _edit(root / "DEBIAN/control", r"(?m)^Version: .*$", f"Version: {version}")
    for name in ("preinst", "postinst", "prerm", "postrm"):
        script = deb.script(name, version)
        (root / "DEBIAN" / name).write_text(
            script if schema is None else re.sub(r"-gt \d+ \]", f"-gt {schema} ]", script)
        )
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(root), str(path)], check=True)
    return path


def path_of(package: Path, version: str) -> Path:
    """Where the same package lies under another version."""
    return package.with_name(f"coordd_{version}_{package.stem.rpartition('_')[2]}.deb")


_MIGRATION = 'MIGRATIONS.append(("CREATE TABLE later (x)",))\n\n# Tables that were added'


def _edit(path: Path, pattern: str, text: str) -> None:
    """Replace the one place, in the source and in what was compiled from it."""
    new, count = re.subn(pattern, text, path.read_text())
    assert count == 1, f"{path}: {pattern}"
    path.write_text(new)
    if path.suffix == ".py":
        py_compile.compile(str(path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


class Host:
    """A machine with Debian."""

    def __init__(self, lab: SystemdLab) -> None:
        self.lab = lab

    def put(self, file: Path) -> None:
        """Copy a file into root's home."""
        copy = self.file(f"/root/{file.name}")
        if not copy.exists():
            copy.write_bytes(file.read_bytes())

    def shell(self, line: str, *, check: bool = True) -> str:
        """Run a line of shell as root, in root's home."""
        return self.lab.run("env", "DEBIAN_FRONTEND=noninteractive", "bash", "-c", f"cd; {line}", check=check)

    def fails(self, line: str) -> str:
        """Run a line that must fail; returns all that it said."""
        said = self.shell(f"({line}) 2>&1 && echo it worked", check=False)
        assert "it worked" not in said, said
        return said

    def file(self, name: str) -> Path:
        """A file of the machine, seen from outside."""
        return self.lab.root / name.lstrip("/")

    def version(self) -> str:
        """The installed version, with dpkg's word for its state."""
        return self.shell("dpkg-query -W -f '${Version} ${db:Status-Status}' coordd", check=False)

    def ctl(self, *words: str) -> Any:
        return json.loads(self.shell(f"coordctl --output json {' '.join(words)}"))

    def run_of(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ctl("run", "show", run)
        return found

    def main_pid(self) -> str:
        return self.lab.show("coordd", "MainPID")["MainPID"]

    def is_active(self) -> bool:
        return self.lab.show("coordd", "ActiveState")["ActiveState"] == "active"


@contextlib.contextmanager
def booted(image: Path, name: str = "edge-1", netns: str = "") -> Iterator[Host]:
    """A machine from the image, switched off at the end."""
    with SystemdLab(name, lower=str(image), netns=netns) as lab:
        yield Host(lab)
