"""The previous version, as it was released: unpacked from the archive beside this file, then loaded or started.

The archive holds the package ``coordd`` of commit ae6411e, the last commit that knows only the rules 1. It was made
with ``git archive ae6411e coordd | xz -9e``. So a clone without git history can use it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

OLD = "ae6411e"
ARCHIVE = Path(__file__).with_name(f"coordd-{OLD}.tar.xz")


@functools.cache
def directory() -> Path:
    """A directory with the old package in it, which is removed when this process ends."""
    made = tempfile.TemporaryDirectory(prefix=f"coordd-{OLD}-")
    _kept.append(made)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(made.name, filter="data")
    return Path(made.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


@contextlib.contextmanager
def imports() -> Iterator[None]:
    """Imports in this context come from the old package, also imports inside its functions."""
    ours = _taken_out()
    sys.modules.update(_loaded)
    sys.path.insert(0, str(directory()))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(directory()))
        _loaded.update(_taken_out())
        sys.modules.update(ours)
        importlib.invalidate_caches()


def _taken_out() -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "coordd"}


def load(name: str) -> ModuleType:
    """A module of the old package beside the new one of the same name, such as ``coordd.core.node``."""
    if name not in _loaded:
        with imports():
            importlib.import_module(name)
    return _loaded[name]


_loaded: dict[str, ModuleType] = {}


def copy(target: Path) -> Path:
    """Copy the old package to ``target``. Returns the directory for a program's PYTHONPATH."""
    shutil.copytree(directory(), target, dirs_exist_ok=True)
    return target
