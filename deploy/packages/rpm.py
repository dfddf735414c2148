"""The RPM package, from the same tree and with the same steps as the Debian package."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from packages import deb, tree, wheelhouse

SPEC = """\
Name: coordd
Version: {version}
Release: {release}
Summary: Runs every Spark job once, even when an edge node dies
License: Apache-2.0
Requires: /usr/bin/{python}, systemd, util-linux
AutoReqProv: no
%global __os_install_post %{{nil}}
%global _build_id_links none
%global debug_package %{{nil}}
%global clamp_mtime_to_source_date_epoch 1
%global use_source_date_epoch_as_buildtime 1

%description
A daemon for the edge nodes from which spark-submit is called. For each fire time of a job exactly one node launches
it; when that node dies, another takes over.

%install
cp -a {root}/. %{{buildroot}}/

%pre
{steps}
if [ "$1" = 1 ]; then plan_first_start; else refuse_newer_ledger; stop_for_upgrade; fi

%post
{steps}
set_up

%posttrans
{steps}
start_daemon "$(cat "$START" 2> /dev/null)"

%preun
{steps}
if [ "$1" = 0 ]; then stop_daemon || true; keep_units_of_runs; say_what_lives_on; fi

%postun
{steps}
if [ "$1" = 0 ]; then forget; fi

%files
{files}
"""


def build(house: Path, to: Path, release: int = 1) -> Path:
    """Build the package from a wheelhouse; returns its path. ``release``: which build of this version it is."""
    [wheel] = house.glob("coordd-*.whl")
    version = wheel.name.split("-")[1]
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch, "root")
        root.mkdir()
        tree.stage(house, root)
        spec = Path(scratch, "coordd.spec")
        text = specification(version, release, root)
        spec.write_text(text)
        os.environ["SOURCE_DATE_EPOCH"] = deb.date()
        wheelhouse.run(
            "rpmbuild", "-bb", "--define", f"_topdir {scratch}/rpm", "--define", "_binary_payload w2.xzdio", str(spec)
        )
        [built] = Path(scratch, "rpm/RPMS").rglob("*.rpm")
        path = to / built.name
        path.write_bytes(built.read_bytes())
    return path


def specification(version: str, release: int, root: Path) -> str:
    """What rpmbuild reads: the package of what is staged below ``root``."""
    files = "\n".join(_files(root))
    return SPEC.format(
        version=version, release=release, python=tree.PYTHON, root=root, steps=deb.steps(version), files=files
    )


def _files(root: Path) -> list[str]:
    """What the package owns: each file, and the folders that nobody else has."""
    ours = ("opt/coordd", "usr/share/coordd", "usr/share/doc/coordd", "etc/coordd")
    found = []
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink() or not path.is_dir():
            found.append(f'%attr(-,root,root) "/{name}"')
        elif name.startswith(ours):
            found.append(f'%dir %attr(0755,root,root) "/{name}"')
    return found
