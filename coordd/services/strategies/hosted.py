"""The strategies of packages: each is a process that is started when it is first asked, and answers a question a line.

One that does not answer in time is ended, and started again after a pause that doubles. Its memory is limited, and
nothing that it does holds the daemon up.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
from collections.abc import Collection, Sequence
from typing import Any

import trio

from coordd.core.visible import visible
from coordd.errors import UnavailableError
from coordd.plugins import STRATEGIES
from coordd.plugins.calling import host
from coordd.services.programs.child import environment, killed, limit

# How long (seconds) an answer may take, and a start: the package is imported.
ASKED_S = 1.0
START_S = 30.0

# The first pause (seconds) before a process is started again, and the longest.
PAUSE_MIN_S, PAUSE_MAX_S = 30.0, 600.0

# Bytes of an answer: some for each job.
ANSWER_BYTES_MAX = 4 * 2**20

NICE = 10
LIMITS = {resource.RLIMIT_DATA: 512 * 2**20, resource.RLIMIT_NOFILE: 256, resource.RLIMIT_CORE: 0}


class _Process:
    """One process, from its start on."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.began = trio.current_time()
        self.ready = self.broken = False  # broken: what it says next cannot be trusted
        self._rest = b""

    async def said(self) -> dict[str, Any]:
        """The next line. Raises UnavailableError when it has ended, or says what nobody can read."""
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            data = await self.process.stdout.receive_some(65536)
            self._rest += data
            if not data or len(self._rest) > ANSWER_BYTES_MAX:
                self.broken = True
                raise UnavailableError("failed: it ended" if not data else "failed: it said too much")
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            told = json.loads(line)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            self.broken = True
            raise UnavailableError("failed: it said what nobody can read")
        if "failed" in told:
            raise UnavailableError(visible(f"failed: {told['failed']}")[:200])
        return told


class Hosted:
    """The processes of the strategies of one kind, by name."""

    def __init__(self, of: str) -> None:
        """``of``: what they are told, ``room`` or ``past``."""
        self._of = of
        self._processes: dict[str, _Process] = {}
        self._pauses: dict[str, tuple[float, float]] = {}  # name -> when it is started again, and the next pause

    @property
    def starting(self) -> bool:
        """True while one of them has not said yet that it is ready."""
        return any(not one.ready for one in self._processes.values())

    async def ask(self, name: str, questions: Sequence[tuple[Any, ...]]) -> list[Any] | None:
        """What it answers to each question; None while it starts, or is not started again yet.

        Raises trio.TooSlowError: no answer in time; or UnavailableError with a reason.
        """
        now = trio.current_time()
        again_at, pause_s = self._pauses.get(name, (now, PAUSE_MIN_S))
        one = self._processes.get(name)
        if one is None:
            if now < again_at:
                return None
            one = self._processes[name] = await self._start(name)
        failed = True
        try:
            with trio.fail_after(ASKED_S):
                if not one.ready:
                    await one.said()
                    one.ready = True
                answer = await self._answer(one, questions)
            failed = False
        except trio.TooSlowError:
            if not one.ready and now - one.began < START_S:
                failed = False
                return None
            raise
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise UnavailableError("failed: it ended") from exc
        except UnavailableError:
            failed = not one.ready or one.broken
            raise
        finally:
            if failed:
                self._pauses[name] = (now + pause_s, min(2 * pause_s, PAUSE_MAX_S))
                await self._end(name)
        self._pauses.pop(name, None)
        return answer

    async def _answer(self, one: _Process, questions: Sequence[tuple[Any, ...]]) -> list[Any]:
        assert one.process.stdin is not None
        await one.process.stdin.send_all(json.dumps(questions).encode() + b"\n")
        said = (await one.said()).get("said")
        if not isinstance(said, list) or len(said) != len(questions):
            one.broken = True
            raise UnavailableError("failed: it said what nobody can read")
        return said

    async def _start(self, name: str) -> _Process:
        try:
            process = await trio.lowlevel.open_process(
                host(STRATEGIES, name, json.dumps({"of": self._of})),
                stdin=subprocess.PIPE,  # its end tells the process that the daemon is gone
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment(finds_packages=True),
                cwd="/",
                start_new_session=True,
            )
        except OSError as exc:
            raise UnavailableError(f"no process for it: {exc.strerror or exc}") from exc
        limit(process.pid, LIMITS)
        with contextlib.suppress(OSError):  # it has ended already, or the kernel forbids it
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
        return _Process(process)

    async def keep(self, names: Collection[str]) -> None:
        """End the processes of all others."""
        for name in set(self._processes) - set(names):
            await self._end(name)

    async def _end(self, name: str) -> None:
        one = self._processes.pop(name, None)
        if one is not None:
            await killed(one.process)
