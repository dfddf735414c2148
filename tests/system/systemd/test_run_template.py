"""The packaged unit of a run, checked by systemd's tools and beside the daemon's."""

from __future__ import annotations

import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from system.systemd.run_units import TEMPLATE
from system.systemd.test_units import UNIT

# The exposure level of `systemd-analyze security`, times ten. What keeps it above that of the daemon's unit: the
# supervisor starts as root (0.4), may become other users (0.3 and 0.2), and may signal them (0.1).
EXPOSURE_MAX = 23

# The daemon's sandbox in these points only: the program's /tmp is the unit's, its user is another one.
NOT_OURS = {"BindPaths", "ReadOnlyPaths", "CapabilityBoundingSet"}


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that exists on this machine: systemd-analyze looks for the program."""
    copy = tmp_path / TEMPLATE.name.replace("@.", "@a.")
    copy.write_text(re.sub(r"(?m)^(ExecStart)=\S+", r"\1=/bin/sleep", TEMPLATE.read_text()))
    return copy


def hardening(path: Path) -> list[str]:
    return path.read_text().split("# ---- Hardening")[1].split("[Install]")[0].splitlines()


def settings(path: Path) -> list[tuple[str, str]]:
    lines = [line for line in hardening(path) if "=" in line and not line.startswith("#")]
    return [(name, value) for name, _, value in (line.partition("=") for line in lines)]


def test_verify_has_nothing_to_say(unit: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ""
    assert done.returncode == 0


def test_exposure_is_what_the_supervisor_needs(unit: Path) -> None:
    threshold = f"--threshold={EXPOSURE_MAX}"
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", threshold, str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stderr
    assert float(found[1]) <= EXPOSURE_MAX / 10, done.stdout


def test_a_run_is_as_closed_as_the_daemon() -> None:
    run = settings(TEMPLATE)
    assert [one for one in settings(UNIT) if one not in run and one[0] not in NOT_OURS] == []


def test_a_run_ends_before_the_network_at_a_shutdown() -> None:
    """systemd stops in the opposite order. The daemon's unit starts after the same ones."""
    wanted = set(re.findall(r"(?m)^After=(.+)$", UNIT.read_text()))
    assert "network-online.target" in wanted
    assert wanted <= set(re.findall(r"(?m)^After=(.+)$", TEMPLATE.read_text()))


def test_every_line_of_hardening_has_its_reason() -> None:
    for above, line in pairwise(hardening(TEMPLATE)):
        if "=" in line and not line.startswith("#"):
            assert above.startswith("#"), f"{line} has no reason above it"


def test_a_unit_ends_with_its_supervisor_and_never_starts_again() -> None:
    found = dict(re.findall(r"(?m)^(\w+)=(.*)$", TEMPLATE.read_text()))
    assert found["KillMode"] == "mixed"
    assert found["Delegate"] == "yes"
    assert "Restart" not in found
    assert "WantedBy" not in found
    assert found["ExecStart"] == "/usr/bin/coordd-run %i coordd"
