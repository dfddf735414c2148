"""The program that calls a plug-in: what starts it."""

from __future__ import annotations

import os
import sys

# The program of what a package brings.
HOST = (sys.executable, "-P", "-m", "coordd.plugins.host")

# Instead of a group: load a plug-in of the group in the context, to see whether that works.
LOADING = "load"


def host(group: str, name: str, context: str) -> list[str]:
    """The program that runs what a package brings under this name."""
    return [*HOST, group, name, context]


def where_packages_are() -> dict[str, str]:
    """Variables by which a program finds the packages that the daemon finds."""
    return {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
