"""The strategies that packages bring: one process for each, which is started when it is asked first.

The process (coordd/plugins/host.py) loads its strategy once and answers questions, a line each. One that hangs, leaks
or ends its process is named and started again later. Nothing of it runs in the daemon.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import trio

from coordd.plugins import PROBLEM, READY, STRATEGIES
from coordd.services.plugged.process import Plugged, logged
from coordd.services.programs.child import environment, host, how, killed

# How long (seconds) a strategy may take to answer, and its process to load it.
ASKED_S = 1.0
START_S = 30.0

# After a failure its process is started again in this time (seconds); one that nobody asks for this long is ended.
AGAIN_S = 60.0
IDLE_S = 300.0

# Bytes of an answer: ten thousand jobs need less.
ANSWER_MAX = 4 * 2**20


class StrategyError(Exception):
    """What a strategy did instead of an answer, as a sentence."""


class Said(NamedTuple):
    """Of one question: what the strategy returned, or ``problem``."""

    value: Any
    problem: str


class Brought:
    """All of them. ``run`` must be running while they are asked."""

    def __init__(self) -> None:
        self._processes: dict[str, _Process] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """For ever. The processes end with it."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None

    async def ask(self, name: str, kind: str, about: Sequence[tuple[Any, ...]]) -> list[Said] | None:
        """What it says about each; None while it is loaded. ``kind``: room or past. Raises StrategyError."""
        one = self._processes.get(name)
        if one is None:
            assert self._nursery is not None, "run is not running"
            one = self._processes[name] = _Process(name)
            self._nursery.start_soon(self._live, one)
        with trio.move_on_after(ASKED_S):
            await one.began.wait()
        return await one.ask(json.dumps({kind: about}), len(about))

    def problems(self) -> dict[str, str]:
        """Why some cannot be asked now, by name."""
        return {name: one.problem for name, one in self._processes.copy().items() if one.problem}

    async def _live(self, one: _Process) -> None:
        await one.live()
        if one.problem:
            await trio.sleep(AGAIN_S)
        del self._processes[one.name]


class _Question:
    def __init__(self, text: str, count: int) -> None:
        self.text = text
        self.count = count
        self.said: list[Said] | None = None
        self.over = trio.Event()


class _Process:
    """One process, from its start to its end. ``problem``: why it cannot be asked."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.began = trio.Event()  # it is loaded, or has ended
        self.problem = ""
        self._turn = trio.Lock()
        self._ask, self._asked = trio.open_memory_channel[_Question](0)

    async def ask(self, text: str, count: int) -> list[Said] | None:
        """As Brought.ask says."""
        async with self._turn:
            if not self.began.is_set():
                return None
            question = _Question(text, count)
            try:
                await self._ask.send(question)
            except trio.BrokenResourceError:  # it has ended
                if self.problem:
                    raise StrategyError(self._told()) from None
                return None
            await question.over.wait()
            if question.said is None:
                raise StrategyError(self._told())
            return question.said

    def _told(self) -> str:
        return f"{self.problem}; it is started again in {AGAIN_S:g} s"

    async def live(self) -> None:
        """Start it, and answer questions until it fails, or nobody asks any more."""
        pipe = subprocess.PIPE
        try:
            process = await trio.lowlevel.open_process(
                host(STRATEGIES, self.name, json.dumps({"timeout_s": START_S, "asked_s": ASKED_S})),
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env=environment(finds_packages=True),
                cwd="/",
                start_new_session=True,
            )
        except (OSError, RuntimeError) as exc:  # no thread is free to start it
            self.problem = f"no process for it: {getattr(exc, 'strerror', None) or exc}"
        else:
            try:
                assert process.stderr is not None
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(logged, Plugged(STRATEGIES, self.name, self.name, 0), process.stderr)
                    await self._serve(process)
                    nursery.cancel_scope.cancel()
            finally:
                await killed(process)
        self.began.set()
        self._asked.close()

    async def _serve(self, process: trio.Process) -> None:
        assert process.stdout is not None
        answers = _Answers(process.stdout)
        with trio.move_on_after(START_S) as starting:
            word, _, text = (await answers.line()).partition(" ")
            if word != READY:
                self.problem = text if word == PROBLEM else await _end_of(process)
                return
        if starting.cancelled_caught:
            self.problem = f"it was not loaded within {START_S:g} s"
            return
        self.began.set()
        while not self.problem:
            question = None
            with trio.move_on_after(IDLE_S):
                question = await self._asked.receive()
            if question is None:
                return
            try:
                self.problem = await self._answered(process, answers, question)
            finally:
                question.over.set()

    async def _answered(self, process: trio.Process, answers: _Answers, question: _Question) -> str:
        """Why it must be ended; "" with an answer."""
        assert process.stdin is not None
        line = ""
        with trio.move_on_after(ASKED_S) as asking:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await process.stdin.send_all(f"{question.text}\n".encode())
                line = await answers.line()
        if asking.cancelled_caught:
            return f"no answer within {ASKED_S:g} s"
        if not line:
            return await _end_of(process)
        try:
            said = [Said(*one) for one in json.loads(line)]
        except (ValueError, TypeError, RecursionError):
            said = []
        if len(said) != question.count:
            return f"expected {question.count} answers in JSON, found {line!r:.60}"
        question.said = said
        return ""


async def _end_of(process: trio.Process) -> str:
    with trio.move_on_after(ASKED_S):
        await process.wait()
        return f"its process has ended: {how(process.returncode)}"
    return "it has closed its standard output"


class _Answers:
    """The lines of its standard output; "" at its end, and instead of a line that is too long."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._rest = bytearray()

    async def line(self) -> str:
        while b"\n" not in self._rest:
            piece = b""
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                piece = bytes(await self._stream.receive_some())
            if not piece or len(self._rest) > ANSWER_MAX:
                return ""
            self._rest += piece
        end = self._rest.index(b"\n")
        line = self._rest[:end]
        del self._rest[: end + 1]
        return line.decode(errors="replace")
