"""Triggers that this node accepted while the ledger was away: a small file for each, until the ledger has it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from typing import Any

from coordd.adapters.disk.files import UNFINISHED, write_atomic
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.sound import registration_fault
from coordd.core.ledger.words import Policy
from coordd.errors import UnavailableError


class RequestFiles:
    """A directory of accepted triggers."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._unforgotten: set[str] = set()  # the disk could not remove these

    def keep(self, of: Registration) -> None:
        """Write one; it is on the disk when this returns. Raises UnavailableError when the disk refuses it."""
        fields = {
            "run": of.run,
            "job": of.job,
            "digest": of.digest,
            "policy": of.policy.pack(),
            "fire_at": of.fire_at,
            "args": of.args,
            "by": of.by,
        }
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            write_atomic(self._path(of.run), json.dumps(fields).encode())
        except OSError as exc:
            raise UnavailableError(f"{self.directory}: {exc.strerror or exc}") from exc

    def forget(self, run: str) -> None:
        """The ledger has it: remove the file. If the disk refuses, the next call tries again. After a restart the
        trigger may be registered once more, which the ledger detects.
        """
        for path in sorted({self._path(run)} | self._unforgotten):
            try:
                os.unlink(path)
            except FileNotFoundError:
                self._unforgotten.discard(path)  # most triggers were never stored here
            except OSError:
                self._unforgotten.add(path)
            else:
                self._unforgotten.discard(path)

    def load(self) -> tuple[list[Registration], list[str]]:
        """Waiting triggers, and the paths of unusable files (which stay where they are)."""
        found: list[Registration] = []
        bad: list[str] = []
        try:
            names = sorted(os.listdir(self.directory))
        except FileNotFoundError:
            return found, bad
        except OSError:
            return found, [self.directory]
        for name in names:
            path = os.path.join(self.directory, name)
            if name.endswith(UNFINISHED):  # a daemon was killed while it wrote it, and nobody had an answer
                with contextlib.suppress(OSError):
                    os.unlink(path)
                continue
            try:
                with open(path, encoding="utf-8") as file:
                    found.append(_registration(json.load(file)))
            except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
                bad.append(path)
        return found, bad

    def _path(self, run: str) -> str:
        return os.path.join(self.directory, hashlib.sha256(run.encode()).hexdigest()[:32] + ".json")


def _registration(said: Any) -> Registration:
    """A stored trigger. Raises ValueError, KeyError, TypeError, OverflowError or RecursionError if it is invalid."""
    run, job, digest, policy, args, by = [said[key] for key in ("run", "job", "digest", "policy", "args", "by")]
    fire_at = float(said["fire_at"])
    if not all(isinstance(text, str) for text in (run, job, digest, policy, args, by)) or not math.isfinite(fire_at):
        raise TypeError("expected texts, and an instant")
    if not isinstance(json.loads(args), dict):
        raise TypeError("expected arguments")
    of = Registration(run, job, digest, Policy.unpack(policy), fire_at, scheduled=False, args=args, by=by)
    if fault := registration_fault(of):
        raise ValueError(fault)
    return of
