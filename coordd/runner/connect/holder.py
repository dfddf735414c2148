"""The runner of an attempt that may take a prepared server of Spark Connect.

From then on the server and its keeper are processes of the attempt, though they are older and no descendants: they get
its label, by which runner and watchers find all of its processes, and its cgroup. The link to the keeper is one more
way to their end: when this process ends, however that happens, the kernel closes the link, and the keeper kills the
server.
"""

import contextlib
import json
import resource
import socket

from coordd.runner import kernel
from coordd.runner.connect.program import PREPARED
from coordd.runner.connect.server import TOKEN, below
from coordd.runner.holder import Runner
from coordd.runner.program import Program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A keeper answers at once; if not, the program starts a server itself.
TAKE_S = 2.0
ANSWER_BYTES_MAX = 4096

RLIMIT_LOCKS = 10  # the label: see kernel.label_of


class ConnectRunner(Runner):
    """As Runner, with a prepared server if it is still there."""

    def __init__(self, spec: "dict[str, Any]", boot: str, watcher: int, life_fd: int, pet_fd: int) -> None:
        self._link: socket.socket | None = None
        self._server: dict[str, Any] = {}
        super().__init__(spec, boot, watcher, life_fd, pet_fd)
        if self._server and self.tree.cgroup:
            for pid in self._pids():
                with contextlib.suppress(OSError), open(f"{self.tree.cgroup}/cgroup.procs", "wb", buffering=0) as file:
                    file.write(str(pid).encode())  # if the kernel refuses, the label must be enough

    def _fork_program(self) -> Program:
        try:
            self._take()
        except (OSError, ValueError, KeyError) as exc:
            kernel.complain(f"the prepared server of Spark Connect cannot be taken: {exc}")
            self._drop()
        return super()._fork_program()

    def _take(self) -> None:
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.settimeout(TAKE_S)
        self._link.connect(self.spec["connect"]["address"])
        self._link.send(b"take")
        self._server = json.loads(self._link.recv(ANSWER_BYTES_MAX))
        label = kernel.label_of(self.spec["nonce"])
        labelled: set[int] = set()
        while new := set(self._pids()) - labelled:  # also those that were made meanwhile
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    resource.prlimit(pid, RLIMIT_LOCKS, (label, label))
            labelled |= new

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link, self._server = None, {}

    def _pids(self) -> "list[int]":
        keeper = int(self._server["keeper"])
        return [keeper, *below(keeper)]

    def _environment(self) -> "dict[str, str]":
        env = super()._environment()
        if self._server:
            told = {
                "address": self.spec["connect"]["address"],
                "pid": self._server["pid"],
                "port": self._server["port"],
            }
            env.update({PREPARED: json.dumps(told), TOKEN: self._server["token"]})
        return env

    def _is_left(self) -> bool:
        if self._server:
            self.childless = False  # the keeper is not our child: look at all processes
        return super()._is_left()
