"""Since when this node has each hook, over restarts: a new hook is not told of what was before it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

import structlog

from coordd.services.hooks.listeners import Listener

log = structlog.get_logger("hooks")


class Since:
    """A small file. If it cannot be read or written, hooks are new with each start."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._known: dict[str, float] = {}
        try:
            self._known = self._load()
        except FileNotFoundError:
            pass
        except (OSError, ValueError, AttributeError, TypeError) as exc:
            log.warning("hooks.not_known", reason=f"{path}: {exc}", effect="ends before this start are not told")

    def use(self, hooks: Iterable[Listener], now: float) -> None:
        """These are the hooks now (Unix seconds); the others are forgotten."""
        before = self._known
        self._known = {_key(hook): before.get(_key(hook), now) for hook in hooks}
        if self._known == before:
            return
        try:
            self._save()
        except OSError as exc:
            log.warning("hooks.not_kept", reason=f"{self._path}: {exc.strerror or exc}")

    def _load(self) -> dict[str, float]:
        with open(self._path, encoding="utf-8") as file:
            return {str(name): float(at) for name, at in json.load(file).items()}

    def _save(self) -> None:
        aside = f"{self._path}.new"
        with open(aside, "w", encoding="utf-8") as file:
            json.dump(self._known, file)
        os.rename(aside, self._path)

    def of(self, hook: Listener) -> float:
        """Since when (Unix seconds)."""
        return self._known.get(_key(hook), float("inf"))


def _key(hook: Listener) -> str:
    return f"{hook.job_name} {hook.digest}"
