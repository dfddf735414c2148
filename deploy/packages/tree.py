"""The files of the package as they lie on a machine: /opt/coordd, and what the system looks for elsewhere."""

from __future__ import annotations

import compileall
import gzip
import os
import py_compile
import shutil
import sys
from pathlib import Path

from packages import wheelhouse

HOME = "/opt/coordd"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"

PROGRAMS = {
    "coordd": "coordd.__main__",
    "coordctl": "coordd.cli.coordctl",
    "coordd-run": "coordd.runner.unit.supervisor",  # only systemd starts it
}
PROGRAM = f"#!{HOME}/bin/python3\nfrom {{}} import main\n\nmain()\n"

# A file or folder of the wheel's share/coordd, and where it belongs.
ELSEWHERE = {
    "systemd/coordd.service": "usr/lib/systemd/system/coordd.service",
    "systemd/coordd-run@.service": "usr/lib/systemd/system/coordd-run@.service",
    "polkit/coordd-run.rules": "usr/share/polkit-1/rules.d/coordd-run.rules",
    "systemd/sysusers.d-coordd.conf": "usr/lib/sysusers.d/coordd.conf",
    "systemd/tmpfiles.d-coordd.conf": "usr/lib/tmpfiles.d/coordd.conf",
}


def stage(house: Path, root: Path) -> None:
    """Lay out the whole package under ``root``, from a wheelhouse. The same wheels give the same bytes."""
    modules = root / f"opt/coordd/lib/{PYTHON}/site-packages"
    wheelhouse.install(house, modules)
    shutil.rmtree(modules / "bin", ignore_errors=True)  # programs with the path of the Python that builds
    for record in modules.glob("*.dist-info/RECORD"):
        lines = record.read_text().splitlines(keepends=True)
        record.write_text("".join([line for line in lines if not line.startswith(("bin/", "../", "share/"))]))
    (root / "usr").mkdir()
    shutil.move(modules / "share", root / "usr/share")
    for name, place in ELSEWHERE.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(root / "usr/share/coordd" / name, root / place)
    (root / "usr/share/coordd/systemd").rmdir()
    _environment(root)
    shutil.copy(house / "requirements.lock", root / "usr/share/coordd/requirements.lock")
    for page in (root / "usr/share/man").glob("*/*"):
        (page.parent / f"{page.name}.gz").write_bytes(gzip.compress(page.read_bytes(), mtime=0))
        page.unlink()
    (root / "etc/coordd/jobs.d").mkdir(parents=True)
    _compile(root, modules)
    _set_modes(root)


def _environment(root: Path) -> None:
    """A virtual environment over the system's Python. Its paths are those of the machine where it is installed."""
    home = root / HOME[1:]
    (home / "bin").mkdir()
    (home / "bin/python3").symlink_to(f"/usr/bin/{PYTHON}")
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    (root / "usr/bin").mkdir()
    for name, module in PROGRAMS.items():
        program = home / "bin" / name
        program.write_text(PROGRAM.format(module))
        program.chmod(0o755)
        (root / "usr/bin" / name).symlink_to(f"{HOME}/bin/{name}")


def _compile(root: Path, modules: Path) -> None:
    """Compiled here, because the daemon may not write below /opt. By hash, because times differ from build to build."""
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    done = compileall.compile_dir(modules, quiet=1, stripdir=str(root), prependdir="/", invalidation_mode=unchecked)
    if not done:
        raise wheelhouse.BuildError("a module of the package cannot be compiled; see above")


def _set_modes(root: Path) -> None:
    """Everybody may read everything, and only root may write, whatever the umask of the build was."""
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & 0o100
            os.chmod(path, 0o755 if executable else 0o644)
