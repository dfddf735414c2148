"""Starts runners as separate processes; finds, commands and buries them by their directories.

<runtime_dir>/runs/<tag>.<attempt>.<token>/
    spec.json     the request, without secrets: for people and for the next daemon
    facts         the runner's facts, one JSON object per line (see ``ProcessLauncher.facts``)
    sock          commands to the runner; without a listener the runner is gone
    runner.log    the runner's own errors; locked as long as runner or watcher lives
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import marshal
import os
import secrets
import shutil
import signal
import socket
import sys
import time
from typing import Any

import coordd
from coordd.adapters.kernel.proc import start_ticks, state_and_parent
from coordd.adapters.launch.cgroups import own_cgroup, remove_cgroup
from coordd.adapters.launch.warm import WarmParent
from coordd.adapters.place import here
from coordd.core.jobs.job import run_tag
from coordd.core.ledger.sound import text_fault
from coordd.core.ledger.words import ATTEMPT_MAX, DURATION_MAX_S, INSTANT_MAX, TOKEN_MAX
from coordd.core.redaction import HIDDEN, is_secret_name
from coordd.errors import LocalProtocolError, UnavailableError

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(coordd.__file__)))

# The runner's program text: -c with -I -S -E is the fastest way to start Python, and needs no site-packages.
BOOT = f"import sys; sys.path.insert(0, {ROOT!r}); from coordd.runner.__main__ import main; main()"
BOOT_WARM = BOOT.replace("coordd.runner.__main__", "coordd.runner.warm.parent")

# The prefix of an attempt's directory; the run's tag follows.
CGROUP_PREFIX = "attempt-"

# A runner without facts counts as alive for this long (seconds) after its directory was created.
START_LIMIT_S = 10.0

# The approximate size of one attempt's files.
PROBE_BYTES = 16 * 1024

# The file of the runner's errors.
COMPLAINTS = "runner.log"

# The file descriptor of the back-channel's listening end, in the runner.
LISTENER_FD = 3

# Maximum number of waiting calls; only spark-submit's driver calls.
BACKLOG = 4

# The types and bounds of fields in facts and specs. A line with other values is not a fact: a failing disk may have
# damaged it, and the next daemon must start anyway. The bounds are those of rows and events: the ledger would refuse
# larger values, and peers would not understand them.
_PROCESSES = ("pid", "start_ticks", "watcher_start_ticks", "program", "program_start_ticks")
NUMBERS: dict[str, tuple[tuple[type, ...], float, float]] = {
    **dict.fromkeys(_PROCESSES, ((int,), -(2**63), 2**63 - 1)),
    "attempt": ((int,), 0, ATTEMPT_MAX),
    "token": ((int,), 0, TOKEN_MAX),
    "exit_code": ((int,), -(2**31), 2**32),
    **dict.fromkeys(("at", "called", "fire_at", "due"), ((float, int), 0.0, INSTANT_MAX)),
    "deadline": ((float, int), -INSTANT_MAX, 2 * INSTANT_MAX),
    "lease_s": ((float, int), 0.0, DURATION_MAX_S),
}
TEXTS = (
    "fact",
    "boot_id",
    "cgroup",
    "state",
    "reason",
    "run",
    "job",
    "nonce",
    "args",
    "digest",
    "policy",
    "application_id",
    "elsewhere",
)
MAY_BE_NULL = ("exit_code", "application_id")

# The required fields of a spec, and of each kind of fact.
SPEC_NEEDS = ("run", "job", "attempt", "token", "nonce", "fire_at", "deadline", "lease_s", "cgroup")
FACT_NEEDS = {
    "adopted": ("pid", "start_ticks", "watcher", "watcher_start_ticks", "boot_id", "cgroup"),
    "started": ("program", "program_start_ticks"),
}


class _Known:
    """An attempt that this daemon has started or adopted: the contents of its directory."""

    __slots__ = ("adopted", "spec")

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.adopted: dict[str, Any] = {}


class ProcessLauncher:
    """ports.Launcher with plain processes."""

    def __init__(
        self, runtime_dir: str, *, python: str = sys.executable, use_cgroups: bool = True, warm_for: str = ""
    ) -> None:
        """``warm_for``: the ledger's URL for a warm parent, which the first ``reap`` starts; "" for none."""
        self.runtime_dir = os.path.abspath(runtime_dir)
        self.runs_dir = f"{self.runtime_dir}/runs"
        self.python = python
        self.cgroup_parent = own_cgroup() if use_cgroups else ""
        self._sweep_cgroups()
        self.warm = WarmParent(python, BOOT_WARM, warm_for) if warm_for else None
        self._children: dict[int, str] = {}  # pid -> directory; our own children, not reaped yet
        self._known: dict[str, _Known] = {}  # kept in case somebody removes a directory
        self._buried: set[str] = set()  # a watcher has ended the rest of these

    def directory(self, run: str, attempt: int, token: int) -> str:
        """The directory of an attempt's files; spark.build needs it before the start."""
        return f"{self.runs_dir}/{run_tag(run)}.{attempt}.{token}"

    def start(self, spec: dict[str, Any]) -> str:
        """Start the runner of one attempt; returns its directory.

        ``directory``, ``log_path``, ``cgroup`` and the launcher's back-channel are filled in if the spec lacks them.
        Raises UnavailableError when the operating system refuses.
        """
        directory = spec.get("directory") or self.directory(spec["run"], spec["attempt"], spec["token"])
        full = {
            "log_path": f"{directory}/log",
            "cgroup": self._cgroup(directory),
            "place": spec.get("place") or here(),
            **spec,
            "directory": directory,
            # Older processes cannot belong to the attempt, and are never killed for it.
            "born_ticks": spec.get("born_ticks", now_ticks()),
        }
        listener: socket.socket | None = None
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            os.makedirs(os.path.dirname(full["log_path"]), exist_ok=True)
            if os.path.exists(f"{directory}/spec.json"):
                raise LocalProtocolError(f"the runner of {directory} has been started before")
            full["locks"] = self._try_lock(directory)
            self._write_spec(directory, _shown(full))
            self._known[directory] = _Known(_shown(full))
            if _submits(full):
                listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
                full["launcher_fd"] = LISTENER_FD
                full["launcher_port"] = listener.getsockname()[1]
                full["launcher_secret"] = secrets.token_hex(16)
            self._spawn(directory, full, listener)
        except (OSError, ValueError) as exc:  # valueError: argv with a NUL, or a value that marshal refuses
            self.forget(directory)
            raise UnavailableError(f"cannot start the runner of {spec['run']}: {exc}") from exc
        finally:
            if listener is not None:
                listener.close()
        return directory

    def command(self, directory: str, word: str, reason: str) -> bool:
        """Send the runner a command; False when it is gone."""
        return self._send(directory, f"{word} {reason}".encode()[:4096])

    def scan(self) -> list[str]:
        """The directories of runners that were started here, by this daemon or by an earlier one."""
        try:
            names = sorted(os.listdir(self.runs_dir))
        except FileNotFoundError:
            return []
        found = [f"{self.runs_dir}/{name}" for name in names if not name.startswith(".")]
        return [directory for directory in found if os.path.exists(f"{directory}/spec.json")]

    def clear_away(self) -> None:
        """Remove directories without an attempt: a daemon was killed while it created or removed them.

        Call it before the first start: a new attempt has no spec.json either at first.
        """
        wanted = set(self.scan())
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.runs_dir):
                if entry.path not in wanted and entry.is_dir(follow_symlinks=False) and not self.alive(entry.path):
                    self._remove(entry.path)

    def spec(self, directory: str) -> dict[str, Any]:
        """The request of an earlier daemon, without its secrets."""
        try:
            spec = json.loads(_read(f"{directory}/spec.json"))
        except (OSError, ValueError, RecursionError) as exc:
            raise UnavailableError(f"{directory}/spec.json: {exc}") from exc
        if not says(spec, SPEC_NEEDS):
            raise UnavailableError(f"{directory}/spec.json: it is not the request that was once written")
        self._known.setdefault(directory, _Known(spec))
        return dict(spec)

    def facts(self, directory: str) -> list[dict[str, Any]]:
        """The runner's facts so far, oldest first.

        ``fact`` is adopted (runner and watcher there), started (the program was executed), application (its id is
        known), ended or refused (never executed), untold (nobody knows whether it has ended), reported (the ledger has
        answered); each with ``at`` (Unix seconds), ``boottime``, ``pid``, ``start_ticks``. A partial line is left out;
        a missing or unreadable file counts as empty.
        """
        try:
            lines = _read(f"{directory}/facts").split(b"\n")
        except OSError:
            return []
        facts = [fact for line in lines if (fact := self.fact(line)) is not None]
        known = self._known.get(directory)
        if known is not None:
            known.adopted = next((fact for fact in reversed(facts) if fact["fact"] == "adopted"), known.adopted)
        return facts

    def fact(self, line: bytes) -> dict[str, Any] | None:
        """One fact, from a line of the file or a poke; None if the line is not a fact."""
        try:
            fact = json.loads(line)
        except (ValueError, RecursionError):
            return None  # partial, by the death of its writer or a full disk, or not complete yet
        if says(fact, ("fact", "at")) and says(fact, FACT_NEEDS.get(fact["fact"], ())):
            return dict(fact)
        return None

    def alive(self, directory: str) -> bool:
        """True if the runner, or a watcher with work left, is alive. True also if that cannot be seen."""
        try:
            children = [*self._children.items(), *(self.warm.children() if self.warm is not None else ())]
            if any(of == directory and start_ticks(pid) for pid, of in children):
                return True
            locked = _is_locked(f"{directory}/{COMPLAINTS}")
            if locked is False and self._locks(directory):
                return False
            if locked or self._send(directory, b"ping"):
                return True
            said = self._adopted(directory)
            if not said:
                return _is_newer(f"{directory}/spec.json", START_LIMIT_S)
            if said["boot_id"] != _boot_id():
                return False
            runner, watcher = start_ticks(said["pid"]), start_ticks(said["watcher"])
        except OSError:
            return True  # no descriptor left, …: a process that may be alive is not buried
        return bool((runner or -1) == said["start_ticks"] or (watcher or -1) == said["watcher_start_ticks"])

    def restore(self, directory: str) -> None:
        """Create the directory of a living attempt again, if somebody has removed it."""
        known = self._known.get(directory)
        if known is None or os.path.exists(f"{directory}/spec.json"):
            return
        with contextlib.suppress(OSError):  # a full disk: the next call tries again
            os.makedirs(directory, mode=0o700, exist_ok=True)
            self._write_spec(directory, known.spec)

    def wake(self, directory: str) -> bool:
        """Continue the watcher if it is stopped (SIGSTOP), and the runner is stopped or gone; without a watcher, the
        runner. Nobody else ends the program before its lease does. True if there was something to continue.
        """
        known = self._known.get(directory)
        if known is None or not known.adopted:
            return False
        said, guards = known.adopted, (("pid", "start_ticks"), ("watcher", "watcher_start_ticks"))
        try:
            alive = [said[pid] for pid, ticks in guards if start_ticks(said[pid]) == said[ticks]]
            if not alive or {state_and_parent(pid)[0] for pid in alive} != {"T"} or said["boot_id"] != _boot_id():
                return False
            os.kill(alive[-1], signal.SIGCONT)
        except OSError:
            return False  # no descriptor left, it is gone meanwhile, …: the next look tells
        return True

    def bury(self, directory: str) -> None:
        """Runner and watcher are both gone without a report: end everything that they left. If it is certain then that
        the attempt is over (core/runs/knowledge.py), report it lost.

        A new watcher does it. The facts tell when it has finished; if the disk refuses them, ``buried`` does. Raises
        UnavailableError when the watcher cannot be started.
        """
        known = self._known.get(directory)
        spec = dict(known.spec) if known is not None else self.spec(directory)
        try:
            started = [fact for fact in self.facts(directory) if fact["fact"] == "started"]
            session = 0
            if started and start_ticks(started[-1]["program"]) == started[-1]["program_start_ticks"] != 0:
                session = started[-1]["program"]  # otherwise the number may be another process's by now
            said = self._adopted(directory)
            spec["watch"] = {
                "fds": None,
                "runner": 0,
                "runner_start_ticks": 0,
                "session": session,
                "petted": True,
                "cgroup": said["cgroup"] if said else spec["cgroup"],
                "introduced": bool(said),  # otherwise the program may not be in that cgroup
                "deadline": spec["deadline"],
            }
            self._spawn(directory, spec, None)
        except OSError as exc:
            raise UnavailableError(f"cannot start a watcher for {directory}: {exc}") from exc

    def buried(self, directory: str) -> bool:
        """True if a watcher has ended everything that was left, and exited normally."""
        return directory in self._buried

    def forget(self, directory: str) -> None:
        """Remove an attempt's files. It is over, and the daemon has read all it needs."""
        self._remove(directory)

    def _remove(self, directory: str) -> None:
        assert os.path.dirname(directory) == self.runs_dir, directory
        self._known.pop(directory, None)
        self._buried.discard(directory)
        if self.cgroup_parent:
            remove_cgroup(self._cgroup(directory))
        with contextlib.suppress(OSError):
            os.unlink(f"{directory}/spec.json")  # first: if we die now, the next daemon finds no attempt here
        shutil.rmtree(directory, ignore_errors=True)

    def check_room(self) -> str:
        """Why no attempt can be started here ("it is full", …); "" if one can."""
        probe = f"{self.runs_dir}/.probe"
        try:
            os.makedirs(self.runs_dir, exist_ok=True)
            try:
                with open(probe, "wb") as file:
                    file.write(b"x" * PROBE_BYTES)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(probe)
        except OSError as exc:
            return f"its runtime directory {self.runtime_dir} cannot be written: {exc.strerror or exc}"
        return ""

    def reap(self) -> list[str]:
        """Collect the runners that have exited since the last call; returns their directories."""
        ended = []
        for pid in list(self._children):
            status = -1
            try:
                reaped, status = os.waitpid(pid, os.WNOHANG)
                if reaped == 0:
                    continue
            except ChildProcessError:
                pass  # another part has collected it: it has exited all the same
            ended.append((self._children.pop(pid), status))
        if self.warm is not None:
            ended += self.warm.look()
        self._buried.update(directory for directory, status in ended if status == 0)
        return [directory for directory, _ in ended]

    def notices(self) -> list[str]:
        """Why warm parents were given up since the last call."""
        if self.warm is None:
            return []
        lost, self.warm.lost = self.warm.lost, []
        return lost

    def close(self) -> None:
        """The daemon stops. Runners go on."""
        if self.warm is not None:
            self.warm.close()

    # ---- steps

    def _cgroup(self, directory: str) -> str:
        return f"{self.cgroup_parent}/{CGROUP_PREFIX}{os.path.basename(directory)}" if self.cgroup_parent else ""

    def _sweep_cgroups(self) -> None:
        """Remove cgroups of runners that were killed together with their watchers and never buried."""
        if not self.cgroup_parent:
            return
        for entry in os.scandir(self.cgroup_parent):
            # A new, empty one may wait for its program to start in it.
            if entry.name.startswith(CGROUP_PREFIX) and not _is_newer(entry.path, START_LIMIT_S):
                remove_cgroup(entry.path)

    def _try_lock(self, directory: str) -> bool:
        """True if locks work here: then a runner without a lock on this attempt's file is not alive."""
        complaints = _complaints(directory)
        try:
            return _is_locked(f"{directory}/{COMPLAINTS}") is True
        finally:
            os.close(complaints)

    def _locks(self, directory: str) -> bool:
        """True if the runner was started with a lock (an older version was not)."""
        known = self._known.get(directory)
        with contextlib.suppress(UnavailableError):
            return bool((known.spec if known is not None else self.spec(directory)).get("locks"))
        return False

    def _adopted(self, directory: str) -> dict[str, Any]:
        """Runner and watcher, from their last fact; {} if there is none yet."""
        adopted = [fact for fact in self.facts(directory) if fact["fact"] == "adopted"]
        if adopted:
            return adopted[-1]
        return self._known[directory].adopted if directory in self._known else {}

    def _write_spec(self, directory: str, shown: dict[str, Any]) -> None:
        """Atomic: if the daemon is killed meanwhile, the directory counts as without an attempt."""
        fresh = f"{directory}/spec.json.new"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(json.dumps(shown))  # with dump, or an indent, each call leaves cycles for the garbage collector
        os.rename(fresh, f"{directory}/spec.json")

    def _spawn(self, directory: str, spec: dict[str, Any], listener: socket.socket | None) -> None:
        """The spec is passed as a file in memory: with a pipe we might wait until the child reads."""
        memory = os.memfd_create("coordd-spec", os.MFD_CLOEXEC)
        complaints = -1
        try:
            complaints = _complaints(directory)
            with open(memory, "wb", closefd=False) as file:
                file.write(marshal.dumps(spec))
            os.lseek(memory, 0, os.SEEK_SET)
            passed = [memory, complaints, *([listener.fileno()] if listener is not None else ())]
            if self.warm is not None and "watch" not in spec and self.warm.start(directory, passed):
                return
            files = [*zip(passed, (0, 1, LISTENER_FD), strict=False), (complaints, 2)]
            pid = os.posix_spawn(
                self.python,
                [self.python, "-I", "-S", "-E", "-c", BOOT, *_shown_in_ps(spec)],
                {"LANG": "C.UTF-8"},  # nothing of the daemon's environment: NOTIFY_SOCKET, WATCHDOG_PID, credentials, …
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, target) for fd, target in files],
                setsid=True,
                setsigmask=(),
            )
        finally:
            os.close(memory)
            if complaints >= 0:
                os.close(complaints)
        self._children[pid] = directory

    def _send(self, directory: str, data: bytes) -> bool:
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                # Through the descriptor: the path itself may be longer than a socket's name may be.
                sock.sendto(data, f"/proc/self/fd/{fd}/sock")
        except BlockingIOError:
            return True  # its queue is full: it exists, but is stopped or busy
        except OSError:
            return False
        finally:
            os.close(fd)
        return True


def says(record: Any, needs: tuple[str, ...]) -> bool:
    """True if this is a record with these fields, and each field has a valid value."""
    if not isinstance(record, dict) or not all(key in record for key in needs):
        return False
    said = {key: value for key, value in record.items() if value is not None or key not in MAY_BE_NULL}
    for key, (kinds, least, most) in NUMBERS.items():
        value = said.get(key, least)
        if key in said and (type(value) not in kinds or not least <= value <= most):  # a NaN is refused too
            return False
    place = said.get("place", {})
    if not isinstance(place, dict) or not all(isinstance(value, str) for value in place.values()):
        return False
    return not any(text_fault(key, said[key]) for key in TEXTS if key in said)


def _is_newer(path: str, age_s: float) -> bool:
    """It exists, and is younger than this (seconds)."""
    try:
        changed_at = os.stat(path).st_ctime
    except OSError:
        return False
    return abs(time.time() - changed_at) < age_s


def _shown_in_ps(spec: dict[str, Any]) -> list[str]:
    """The process name, for people: which run this is."""
    return ["coordd-watcher" if "watch" in spec else "coordd-runner", spec["run"], "attempt", str(spec["attempt"])]


def _shown(spec: dict[str, Any]) -> dict[str, Any]:
    """A spec without its secrets, and without the back-channel, which ends with its first runner."""
    shown = {key: value for key, value in spec.items() if not key.startswith(("launcher_", "unit_"))}
    shown["env"] = {key: HIDDEN if is_secret_name(key) else value for key, value in spec["env"].items()}
    shown["ledger_options"] = {k: v for k, v in spec.get("ledger_options", {}).items() if k != "password"}
    return shown


def _complaints(directory: str) -> int:
    """The file of the runner's errors, locked as long as any process has it open.

    It is the standard output of the runner, its watcher and each later watcher, never of the program. So the kernel
    itself knows whether one of them lives, even if the disk is full. /dev/null if the disk refuses the file.
    """
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        fd = os.open(f"{directory}/{COMPLAINTS}", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # a file system without locks: the facts tell who lives
        fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def _is_locked(path: str) -> bool | None:
    """True if a process has the file open and locked; None when it is gone. Raises OSError when that cannot be seen."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None  # a file system without locks: the facts tell who lives
    finally:
        os.close(fd)
    return False


def now_ticks() -> int:
    """The present in the unit of a process's start: clock ticks since the boot."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def _submits(spec: dict[str, Any]) -> bool:
    """True if the program is spark-submit, or starts it: its driver can send its application id through the launcher's
    back-channel.
    """
    name = str(spec["argv"][0]).rpartition("/")[2]  # also spark3-submit
    return bool(spec.get("submits")) or (name.startswith("spark") and name.endswith("-submit"))


def _boot_id() -> str:
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def _read(path: str) -> bytes:
    """A whole file. Raises OSError (an open file's read would return None without data)."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while part := os.read(fd, 65536):
            data += part
        return data
    finally:
        os.close(fd)
