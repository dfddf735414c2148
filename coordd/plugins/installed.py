"""The plug-ins that installed packages bring, without loading them: their names, versions, and whether they fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def points(group: str, name: str = "") -> list[EntryPoint]:
    """The plug-ins of a group, by name; those of one name."""
    from importlib.metadata import entry_points  # here, because few sites have a plug-in

    found = entry_points(group=group, name=name) if name else entry_points(group=group)
    return sorted(found, key=lambda one: one.name)


def package_of(point: EntryPoint) -> str:
    """The package that brings a plug-in, and its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "no package"


def unfit(point: EntryPoint) -> str:
    """Why a plug-in cannot be used, as far as that is seen without loading it; "" if nothing is seen."""
    if wrong := misfit(point):
        return wrong
    from importlib.util import find_spec  # here, because few sites have a plug-in

    top = point.module.partition(".")[0]
    try:
        there = find_spec(top) is not None  # of a top level nothing is executed
    except (ImportError, ValueError):
        there = False
    return "" if there else f"{package_of(point)} names {point.value}, and there is no module {top}"


def misfit(point: EntryPoint) -> str:
    """Why a plug-in is not for this version of coordd, by what its package requires of it; "" if it is."""
    said = [text for text in (point.dist.requires or ()) if "coordd" in text] if point.dist is not None else []
    if not said:
        return ""
    from importlib.metadata import PackageNotFoundError, version  # here, because few packages say it

    from packaging.requirements import InvalidRequirement, Requirement

    try:
        ours = version("coordd")
    except PackageNotFoundError:
        return ""  # a tree of sources
    for text in said:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            return f'{package_of(point)} requires "{text:.60}", which nobody can read'
        applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if wanted.name == "coordd" and applies and not wanted.specifier.contains(ours, prereleases=True):
            return f"{package_of(point)} is for coordd{wanted.specifier}, and this is coordd {ours}"
    return ""
