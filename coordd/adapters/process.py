"""Starts runners as processes of their own, and finds, commands and buries them by their directories.

<runtime_dir>/runs/<tag>.<attempt>.<token>/
    spec.json     what was asked for, without secrets: for people and for the next daemon
    facts         what the runner says, one JSON object a line (see ``ProcessLauncher.facts``)
    sock          commands to the runner; nobody listening means that it is gone
    runner.log    what the runner itself had to complain about
"""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import re
import secrets
import shutil
import socket
import sys
import time
from typing import Any

import coordd
from coordd.core.job import run_tag
from coordd.errors import LocalProtocolError, UnavailableError

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(coordd.__file__)))

# The runner starts from this text: -c with -I -S -E is the fastest start there is, and needs no site-packages.
BOOT = f"import sys; sys.path.insert(0, {ROOT!r}); from coordd.runner.__main__ import main; main()"

SECRET = re.compile(r"(password|secret|token|key)$", re.IGNORECASE)

# In front of the attempt's directory's name; that begins with the run's tag.
CGROUP_PREFIX = "attempt-"

# A runner whose facts are not there yet counts as alive this long after its directory was made.
START_LIMIT_S = 10.0

# Where the runner finds the listening end of the back-channel.
LISTENER_FD = 3

# Only spark-submit's driver calls back; a bounded number of calls may wait.
BACKLOG = 4

# What the fields of facts and specs are. A line that says something else is no fact: a disk may have made it, and the
# next daemon must start all the same.
_NUMBERS = ("pid", "start_ticks", "watcher_start_ticks", "program", "program_start_ticks", "attempt", "token")
_SECONDS = ("at", "fire_at", "deadline", "lease_s")
_TEXTS = ("fact", "boot_id", "cgroup", "state", "reason", "run", "job", "nonce", "args")
KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(_NUMBERS, (int,)), **dict.fromkeys(_SECONDS, (float, int)), **dict.fromkeys(_TEXTS, (str,)),
    "exit_code": (int, type(None)), "application_id": (str, type(None)),
}  # fmt: skip

# No number of ours is larger, and no ledger takes a larger one.
NUMBER_MAX = 2**63

# What a spec, and a fact by its word, must say.
SPEC_NEEDS = ("run", "job", "attempt", "token", "nonce", "fire_at", "deadline", "lease_s", "cgroup")
FACT_NEEDS = {
    "adopted": ("pid", "start_ticks", "watcher", "watcher_start_ticks", "boot_id", "cgroup"),
    "started": ("program", "program_start_ticks"),
}


class ProcessLauncher:
    """ports.Launcher by plain processes."""

    def __init__(self, runtime_dir: str, *, python: str = sys.executable, use_cgroups: bool = True) -> None:
        self.runtime_dir = os.path.abspath(runtime_dir)
        self.runs_dir = f"{self.runtime_dir}/runs"
        self.python = python
        self.cgroup_parent = own_cgroup() if use_cgroups else ""
        self._sweep_cgroups()
        self._children: dict[int, str] = {}  # pid -> directory; our own, not yet reaped

    def directory(self, run: str, attempt: int, token: int) -> str:
        """Where an attempt's files are; spark.build needs it before the start."""
        return f"{self.runs_dir}/{run_tag(run)}.{attempt}.{token}"

    def start(self, spec: dict[str, Any]) -> str:
        """Start the runner of one attempt; returns its directory.

        ``directory``, ``log_path``, ``cgroup`` and the launcher's back-channel are filled in where the spec
        leaves them out. Raises UnavailableError when the operating system does not let us.
        """
        directory = spec.get("directory") or self.directory(spec["run"], spec["attempt"], spec["token"])
        full = {
            "log_path": f"{directory}/log",
            "cgroup": self._cgroup(directory),
            **spec,
            "directory": directory,
            # Nothing older than this can be of the attempt, and nothing older is ever killed for it.
            "born_ticks": int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")),
        }
        listener: socket.socket | None = None
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            os.makedirs(os.path.dirname(full["log_path"]), exist_ok=True)
            if os.path.exists(f"{directory}/spec.json"):
                raise LocalProtocolError(f"the runner of {directory} has been started before")
            self._write_spec(directory, full)
            if _submits(full):
                listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
                full["launcher_fd"] = LISTENER_FD
                full["launcher_port"] = listener.getsockname()[1]
                full["launcher_secret"] = secrets.token_hex(16)
            self._spawn(directory, full, listener)
        except (OSError, ValueError) as exc:  # ValueError: argv with a NUL, or what marshal cannot take
            shutil.rmtree(directory, ignore_errors=True)
            raise UnavailableError(f"cannot start the runner of {spec['run']}: {exc}") from exc
        finally:
            if listener is not None:
                listener.close()
        return directory

    def command(self, directory: str, word: str, reason: str) -> bool:
        """Tell a runner something; False when it is not there any more."""
        return self._send(directory, f"{word} {reason}".encode()[:4096])

    def scan(self) -> list[str]:
        """The directories of runners that were started here, by this daemon or by an earlier one."""
        try:
            names = sorted(os.listdir(self.runs_dir))
        except FileNotFoundError:
            return []
        return [f"{self.runs_dir}/{name}" for name in names if os.path.exists(f"{self.runs_dir}/{name}/spec.json")]

    def spec(self, directory: str) -> dict[str, Any]:
        """What an earlier daemon asked for, without its secrets."""
        try:
            with open(f"{directory}/spec.json", encoding="utf-8") as file:
                spec = json.load(file)
        except (OSError, ValueError, RecursionError) as exc:
            raise UnavailableError(f"{directory}/spec.json: {exc}") from exc
        if not _says(spec, SPEC_NEEDS):
            raise UnavailableError(f"{directory}/spec.json: it says something else than was once asked for")
        return dict(spec)

    def facts(self, directory: str) -> list[dict[str, Any]]:
        """What the runner has said so far, oldest first.

        ``fact`` is adopted (runner and watcher there), started (the program was executed), application (its id
        is known), ended or refused (never executed), reported (the ledger has answered); each with ``at`` (Unix
        seconds), ``boottime``, ``pid``, ``start_ticks``. A torn last line is left out.
        """
        try:
            with open(f"{directory}/facts", "rb") as file:
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return []
        facts = []
        for line in lines:
            try:
                fact = json.loads(line)
            except (ValueError, RecursionError):
                continue  # torn by the death of its writer, or not complete yet
            if _says(fact, ("fact", "at")) and _says(fact, FACT_NEEDS.get(fact["fact"], ())):
                facts.append(fact)
        return facts

    def alive(self, directory: str) -> bool:
        """The runner, or a watcher that still has to end something, is there."""
        if any(of == directory and _start_ticks(pid) for pid, of in self._children.items()):
            return True
        if self._send(directory, b"ping"):
            return True
        adopted = [fact for fact in self.facts(directory) if fact["fact"] == "adopted"]
        if not adopted:
            return _is_newer(f"{directory}/spec.json", START_LIMIT_S)
        said = adopted[-1]
        if said["boot_id"] != _boot_id():
            return False
        runner, watcher = _start_ticks(said["pid"]), _start_ticks(said["watcher"])
        return bool((runner or -1) == said["start_ticks"] or (watcher or -1) == said["watcher_start_ticks"])

    def bury(self, directory: str) -> None:
        """Runner and watcher are both gone, without a last word: end what they left, and report it lost.

        Done by a new watcher; the facts tell when it has finished.
        """
        facts = self.facts(directory)
        adopted = [fact for fact in facts if fact["fact"] == "adopted"]
        started = [fact for fact in facts if fact["fact"] == "started"]
        session = 0
        if started and _start_ticks(started[-1]["program"]) == started[-1]["program_start_ticks"]:
            session = started[-1]["program"]  # else the number may be another process's by now
        spec = self.spec(directory)
        spec["watch"] = {
            "fds": None, "runner": 0, "runner_start_ticks": 0, "session": session, "petted": True,
            "cgroup": adopted[-1]["cgroup"] if adopted else spec["cgroup"], "deadline": spec["deadline"],
        }  # fmt: skip
        try:
            self._spawn(directory, spec, None)
        except OSError as exc:
            raise UnavailableError(f"cannot start a watcher for {directory}: {exc}") from exc

    def forget(self, directory: str) -> None:
        """Remove what an attempt has left on disk. It is over, and the daemon has what it needs."""
        assert os.path.dirname(directory) == self.runs_dir, directory
        if self.cgroup_parent:
            _remove_cgroup(self._cgroup(directory))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{directory}/spec.json")  # first: should we die now, the next daemon finds no attempt here
        shutil.rmtree(directory, ignore_errors=True)

    def reap(self) -> list[str]:
        """Collect the runners that have ended since the last call; returns their directories."""
        ended = []
        for pid in list(self._children):
            try:
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            except ChildProcessError:
                pass  # somebody else has collected it: it has ended all the same
            ended.append(self._children.pop(pid))
        return ended

    # ---- the single steps

    def _cgroup(self, directory: str) -> str:
        return f"{self.cgroup_parent}/{CGROUP_PREFIX}{os.path.basename(directory)}" if self.cgroup_parent else ""

    def _sweep_cgroups(self) -> None:
        """Remove what runners have left that were killed together with their watchers, and were never buried."""
        if not self.cgroup_parent:
            return
        for entry in os.scandir(self.cgroup_parent):
            # One that is new may be waiting for its program to be born in it.
            if entry.name.startswith(CGROUP_PREFIX) and not _is_newer(entry.path, START_LIMIT_S):
                _remove_cgroup(entry.path)

    def _write_spec(self, directory: str, spec: dict[str, Any]) -> None:
        shown = {key: value for key, value in spec.items() if not key.startswith("launcher_")}
        shown["env"] = {key: "***" if SECRET.search(key) else value for key, value in spec["env"].items()}
        shown["ledger_options"] = {k: v for k, v in spec.get("ledger_options", {}).items() if k != "password"}
        fd = os.open(f"{directory}/spec.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(json.dumps(shown))  # with dump, or an indent, each call leaves cycles for the garbage collector

    def _spawn(self, directory: str, spec: dict[str, Any], listener: socket.socket | None) -> None:
        """The spec goes through a file in memory: a pipe could make us wait for the child to read."""
        memory = os.memfd_create("coordd-spec", os.MFD_CLOEXEC)
        complaints = os.open(f"{directory}/runner.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with open(memory, "wb", closefd=False) as file:
                file.write(marshal.dumps(spec))
            os.lseek(memory, 0, os.SEEK_SET)
            files = [(memory, 0), (complaints, 1), (complaints, 2)]
            if listener is not None:
                files.append((listener.fileno(), LISTENER_FD))
            pid = os.posix_spawn(
                self.python,
                [self.python, "-I", "-S", "-E", "-c", BOOT],
                {"LANG": "C.UTF-8"},  # of the daemon's nothing: NOTIFY_SOCKET, WATCHDOG_PID, credentials, …
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, target) for fd, target in files],
                setsid=True,
                setsigmask=(),
            )
        finally:
            os.close(memory)
            os.close(complaints)
        self._children[pid] = directory

    def _send(self, directory: str, data: bytes) -> bool:
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                # By way of the descriptor: the path itself may be longer than a socket's name may be.
                sock.sendto(data, f"/proc/self/fd/{fd}/sock")
        except BlockingIOError:
            return True  # its queue is full: it is there, but stopped or busy
        except OSError:
            return False
        finally:
            os.close(fd)
        return True


def _says(record: Any, needs: tuple[str, ...]) -> bool:
    """Whether this is a record with these fields, and each field that is there is of its kind."""
    if not isinstance(record, dict) or not all(key in record for key in needs):
        return False
    for key, kinds in KINDS.items():
        value = record.get(key, "")
        if key in record and type(value) not in kinds:
            return False
        if isinstance(value, (int, float)) and not abs(value) < NUMBER_MAX:  # also NaN, which is below nothing
            return False
    return True


def _is_newer(path: str, age_s: float) -> bool:
    """It is there, and has been for less than so many seconds."""
    try:
        changed_at = os.stat(path).st_ctime
    except OSError:
        return False
    return abs(time.time() - changed_at) < age_s


def _remove_cgroup(path: str) -> None:
    """Remove an empty cgroup; one in which something lives cannot be removed, and stays."""
    try:
        os.rmdir(path)
    except OSError:
        return


def _submits(spec: dict[str, Any]) -> bool:
    """The program is spark-submit, whose driver can tell its application id by the launcher's back-channel."""
    return str(spec["argv"][0]).rpartition("/")[2] == "spark-submit"


def own_cgroup() -> str:
    """The directory of this process's own cgroup (version 2) if it may have children; else ""."""
    for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        if not os.path.exists(f"{mount}/cgroup.procs"):
            continue
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            paths = [line[3:].strip() for line in file if line.startswith("0::")]
        if not paths:
            return ""
        path = f"{mount}{paths[0]}".rstrip("/")
        probe = f"{path}/coordd-probe-{os.getpid()}"
        try:
            os.mkdir(probe)
            os.rmdir(probe)
        except OSError:
            return ""
        return path
    return ""


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def _start_ticks(pid: int) -> int:
    """When a process was started, in clock ticks since the boot; 0 when it is not there, or only as a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in b"ZX" else int(fields[19])
