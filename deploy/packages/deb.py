"""The Debian package: the staged tree, its control file and its scripts, put together by dpkg-deb."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from coordd.adapters.ledger.sqlite_rows import MIGRATIONS
from packages import lock, tree, wheelhouse

SCRIPTS = Path(__file__).parent / "scripts"

CONTROL = """\
Package: coordd
Version: {version}
Architecture: {architecture}
Maintainer: the coordd project <root@localhost>
Installed-Size: {size}
Depends: python3 (>= 3.{minor}), python3 (<< 3.{next}), systemd, libc6
Recommends: dbus, polkitd
Suggests: default-jre-headless | java17-runtime-headless, redis-server, rabbitmq-server
Section: admin
Priority: optional
Description: runs every Spark job once, even when an edge node dies
 A daemon for the edge nodes from which spark-submit is called. For each fire time
 of a job exactly one node launches it; when that node dies, another takes over.
 .
 The libraries are those of the project's lock, under /opt/coordd. Spark is the site's
 own; its jobs need Java.
"""

COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: the authors of coordd
License: Apache-2.0
 The text is in /usr/share/doc/coordd/LICENSE, and in /usr/share/common-licenses/Apache-2.0.

Files: /opt/coordd/lib/*
Copyright: their authors
License: theirs
 Each library has its licence in its .dist-info folder; /usr/share/coordd/sbom.cdx.json lists them.
"""


def steps(version: str) -> str:
    """The steps that all scripts of all packages share."""
    text = (SCRIPTS / "steps.sh").read_text()
    return "set -e\n\n" + text.replace("@VERSION@", version).replace("@SCHEMA@", str(len(MIGRATIONS)))


def script(name: str, version: str) -> str:
    """One script of a package."""
    return f"#!/bin/sh\n{steps(version)}\n{(SCRIPTS / f'{name}.sh').read_text()}"


def build(house: Path, to: Path, *, compression: str = "xz") -> Path:
    """Build the package from a wheelhouse; returns its path. The same wheels and date give the same bytes."""
    [wheel] = house.glob("coordd-*.whl")
    version = wheel.name.split("-")[1]
    architecture = wheelhouse.run("dpkg", "--print-architecture").strip()
    path = to / f"coordd_{version}_{architecture}.deb"
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch, "root")
        root.mkdir()
        tree.stage(house, root)
        (root / "usr/share/doc/coordd/copyright").write_text(COPYRIGHT)
        control = root / "DEBIAN"
        control.mkdir()
        minor = sys.version_info.minor
        size = sum([file.lstat().st_size for file in root.rglob("*") if not file.is_dir()]) // 1024
        filled = {"version": version, "architecture": architecture, "size": size, "minor": minor, "next": minor + 1}
        (control / "control").write_text(CONTROL.format(**filled))
        (control / "md5sums").write_text("".join(_sums(root)))
        for name in ("preinst", "postinst", "prerm", "postrm"):
            (control / name).write_text(script(name, version))
            (control / name).chmod(0o755)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": date()}
        command = ["dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build", str(root), str(path)]
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return path


def date() -> str:
    """The date of the files in the package: SOURCE_DATE_EPOCH, else that of the last commit, else 0."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return given
    asked = ["git", "-C", str(lock.ROOT), "log", "-1", "--format=%ct"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "0"


def _sums(root: Path) -> Iterator[str]:
    for file in sorted(root.rglob("*")):
        if file.is_file() and not file.is_symlink() and "DEBIAN" not in file.parts:
            digest = hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
            yield f"{digest}  {file.relative_to(root)}\n"
