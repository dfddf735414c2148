"""The files that are made at build time: man pages, completions, the list of what is inside (SBOM)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from coordd import __version__
from coordd.cli.coordctl import program as coordctl
from coordd.cli.coordd import program as coordd
from packages import lock, manual

PROGRAMS = (
    ("coordd", coordd, "runs every Spark job once, even when an edge node dies"),
    ("coordctl", coordctl, "queries and controls the coordd daemon of this machine"),
)

# Where each shell looks for the completion of a program, below PREFIX/share.
PLACES = {
    "bash": "bash-completion/completions/{}",
    "zsh": "zsh/vendor-completions/_{}",
    "fish": "fish/vendor_completions.d/{}.fish",
}


def write(to: Path) -> list[Path]:
    """Write all of them below ``to``, in the layout of PREFIX/share; returns the paths."""
    files = {f"man/man1/{name}.1": manual.page(group, name, __version__, about) for name, group, about in PROGRAMS}
    example = (lock.ROOT / "deploy/coordd.example.toml").read_text()
    files["man/man5/coordd.toml.5"] = manual.example_page(example, __version__)
    for shell, place in PLACES.items():
        for name, group, _ in PROGRAMS:
            files[place.format(name)] = completion(shell, group, name)
    files["coordd/sbom.cdx.json"] = json.dumps(sbom(lock.needed()), indent=2) + "\n"
    for name, text in files.items():
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return sorted([to / name for name in files])


def completion(shell: str, group: click.Group, name: str) -> str:
    """Click's script for one shell; it asks the program itself for the words."""
    kind = get_completion_class(shell)
    assert kind is not None
    asked = kind(group, {}, name, f"_{name.upper()}_COMPLETE")
    return kind.source_template % asked.source_vars()  # source() would start a bash to look at its version


def sbom(packages: list[lock.Locked]) -> dict[str, Any]:
    """What a package holds besides our own code, as CycloneDX. It has no time and no serial number: the same sources
    give the same file.
    """
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "coordd", "version": __version__}},
        "components": [
            {"type": "library", "name": one.name, "version": one.version, "purl": f"pkg:pypi/{one.name}@{one.version}"}
            for one in packages
        ],
    }
