"""The wheel, and a folder of wheels with a lock of its own, from which a machine without a network installs.

pip install --no-index --find-links WHEELHOUSE --require-hashes -r WHEELHOUSE/requirements.lock
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from packages import lock, share

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
PIP_S = 1800.0

# Where `make` puts what it builds.
BUILD = lock.ROOT / "build"


class BuildError(Exception):
    """Something could not be built. The message says what, and ends with what the program that failed has said."""


def wheel(to: Path) -> Path:
    """Build the wheel of this source tree into a folder; returns its path."""
    shutil.rmtree(BUILD / "share", ignore_errors=True)
    share.write(BUILD / "share")
    for kept in (BUILD / "lib", *BUILD.glob("bdist.*")):
        shutil.rmtree(kept, ignore_errors=True)  # setuptools would take modules that were deleted since from there
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", made, str(lock.ROOT))
        [built] = Path(made).glob("*.whl")
        return Path(shutil.copy(built, to))


def wheelhouse(to: Path, extras: Iterable[str] = lock.EXTRAS) -> Path:
    """Fill a folder with the wheels that coordd needs to run, and requirements.lock over exactly these.

    Each download is checked against the hashes of the source tree's lock. What has no wheel is built from its sources.
    """
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch, "wanted.lock")
        wanted.write_text("".join([_line(one.name, one.version, one.hashes) for one in lock.needed(extras)]))
        run(*PIP, "wheel", "--require-hashes", "--no-deps", "--wheel-dir", str(to), "-r", str(wanted))
    wheel(to)
    lines = []
    for path in sorted(to.glob("*.whl")):
        name, version = path.name.split("-")[:2]
        lines.append(_line(name.replace("_", "-"), version, [hashlib.sha256(path.read_bytes()).hexdigest()]))
    (to / "requirements.lock").write_text("".join(lines))
    return to


def install(house: Path, target: Path) -> None:
    """Install a wheelhouse into a folder for modules, without a network and without compiling anything."""
    checked = ("--no-index", "--find-links", str(house), "--require-hashes", "-r", str(house / "requirements.lock"))
    run(
        *PIP,
        "install",
        "--no-compile",
        "--no-warn-conflicts",
        "--root-user-action=ignore",
        "--target",
        str(target),
        *checked,
    )


def run(*command: str, cwd: Path | None = None) -> str:
    """Run a program of the build; returns its output. Raises BuildError with what it said."""
    done = subprocess.run(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PIP_S,
        check=False,
    )
    if done.returncode:
        raise BuildError(f"{' '.join(command[:6])} … failed with exit code {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def _line(name: str, version: str, hashes: Iterable[str]) -> str:
    return f"{name}=={version}" + "".join([f" \\\n    --hash=sha256:{digest}" for digest in hashes]) + "\n"
