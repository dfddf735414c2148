"""Starts a new watcher when the runner's has been killed."""

import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The program's own part of the spec, and what is secret, no watcher needs.
LEFT_OUT = ("argv", "env", "launcher_port", "launcher_secret")


def start_watcher(boot: str, spec: "dict[str, Any]", watch: "dict[str, Any]") -> "tuple[int, int, int]":
    """Start it as a fresh program; returns (pid, a descriptor that tells of its death, one to tell it of ours).

    A fork would be quicker, but there may be a thread in the middle of a call to the ledger.
    """
    life_fd, its_life = os.pipe()
    its_pet, pet_fd = os.pipe()
    its_stdin, spec_fd = os.pipe()
    for inherited in (its_pet, its_life):
        os.set_inheritable(inherited, True)
    pid = os.posix_spawn(
        sys.executable,
        # What follows the text is for those who look with ps.
        [sys.executable, "-I", "-S", "-E", "-c", boot, "coordd-watcher", spec["run"], "attempt", str(spec["attempt"])],
        {"LANG": "C.UTF-8"},
        file_actions=[(os.POSIX_SPAWN_DUP2, its_stdin, 0)],
        setsid=True,
    )
    for inherited in (its_stdin, its_pet, its_life):
        os.close(inherited)
    shown = {key: value for key, value in spec.items() if key not in LEFT_OUT}
    shown["watch"] = {**watch, "fds": (its_pet, its_life)}
    with open(spec_fd, "wb") as file:
        file.write(marshal.dumps(shown))
    return pid, life_fd, pet_fd
