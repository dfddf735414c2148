"""Programs of this source tree as a user without rights, also where Python lies in root's home."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from system.lab.processes import ROOT

NOBODY = 65534

# A Python for developers often lies below /root, which nobody else may enter. In a mount namespace of its own the
# command sees only what it needs of it.
SCRATCH = "/mnt"


def as_user(uid: int = NOBODY) -> list[str]:
    """The words before a command that run it as this user and group, with no other group and no capability."""
    needed = [Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), ROOT]
    needed = [path for path in needed if not any(other in path.parents for other in needed)]
    lines = ["set -e", f"mount -t tmpfs none {SCRATCH}"]
    closed = sorted({shut for path in needed if (shut := _closed(path)) is not None})
    hidden = [path for path in needed if _closed(path) is not None]
    for number, path in enumerate(hidden):
        lines += [f"mkdir {SCRATCH}/{number}", f"mount --bind {_q(path)} {SCRATCH}/{number}"]
    lines += [f"mount -t tmpfs -o mode=755 none {_q(shut)}" for shut in closed]
    for number, path in enumerate(hidden):
        lines += [f"mkdir -p {_q(path)}", f"mount --move {SCRATCH}/{number} {_q(path)}"]
    lines += [f"umount {SCRATCH}", 'exec "$@"']
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    return ["unshare", "--mount", "sh", "-c", "\n".join(lines), "sh", *user]


def _closed(path: Path) -> Path | None:
    """The topmost directory on the way to ``path`` that only its owner may enter."""
    return next((one for one in [*reversed(path.parents), path] if not os.stat(one).st_mode & 0o001), None)


def _q(path: Path) -> str:
    return shlex.quote(str(path))
