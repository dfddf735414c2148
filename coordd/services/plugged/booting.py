"""Takes the boot steps of packages: the mandatory ones before the daemon is ready, the others in the background.

Each try is a child process with a time limit. An optional step that fails is tried again with growing pauses, and those
that require it wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog
import trio

from coordd import plugins
from coordd.config.plugged.boot import BootStep
from coordd.errors import RefusedError
from coordd.services.control.callers import Caller, Method
from coordd.services.control.doctor import FAIL, OK, WARN, Check, check
from coordd.services.plugged.process import Plugged, finished

log = structlog.get_logger("boot")

# The first pause (seconds) before another try of an optional step, and the longest. It doubles.
PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 300.0

# What a step is.
WAITING, RUNNING, DONE, FAILED = "waiting", "running", "done", "failed"

# While the mandatory steps are taken, the daemon answers these.
ANSWERED = frozenset(("ping", "status"))


class Step:
    """One of them."""

    def __init__(self, said: BootStep, about: Mapping[str, str]) -> None:
        self.said = said
        self.state = WAITING
        self.tries = 0
        self.text = ""  # what it said last, or why it failed last
        self.done = trio.Event()
        self._about = about

    async def attempt(self) -> bool:
        """Try it once. True if it is done."""
        said = self.said
        self.tries += 1
        self.state, self.text = RUNNING, ""
        log.info("boot.step_started", step=said.name, attempt=self.tries, mandatory=said.mandatory)
        began = trio.current_time()

        def heard(_word: str, text: str) -> None:
            self.text = text

        context = {"name": said.name, **self._about, "attempt": self.tries, "args": said.args}
        of = Plugged(plugins.BOOT_STEPS, said.point, said.name, said.memory)
        done, self.text = await finished(of, context, said.timeout_s, heard)
        seconds = round(trio.current_time() - began, 3)
        if done:
            self.state = DONE
            log.info("boot.step_done", step=said.name, text=self.text or None, seconds=seconds)
            self.done.set()
            return True
        self.state = FAILED
        (log.error if said.mandatory else log.warning)(
            "boot.step_failed", step=said.name, reason=self.text, seconds=seconds
        )
        return False

    def view(self) -> dict[str, Any]:
        """As in `status`."""
        return {
            "name": self.said.name,
            "mandatory": self.said.mandatory,
            "state": self.state,
            "attempts": self.tries,
            "text": self.text or None,
        }

    def check(self) -> Check:
        """For `doctor`."""
        text = f"{self.state}, tried {self.tries} times" + (f": {self.text}" if self.text else "")
        failed = self.tries > 1 or self.state == FAILED
        mark = OK if self.state == DONE or not failed else FAIL if self.said.mandatory else WARN
        return check(f"boot step {self.said.name}", mark, text, "the log has boot.said; docs/runbook.md: a boot step")


class Boot:
    """All steps of one start."""

    def __init__(self, steps: Iterable[BootStep], about: Mapping[str, str], tell: Callable[[str, float], None]) -> None:
        """``about``: node, cluster and socket, for the contexts. ``tell``: what the start waits for (a sentence), and
        for how long (seconds) at most.
        """
        self.steps = {said.name: Step(said, about) for said in steps}
        self._tell = tell

    async def prepare(self) -> str:
        """Take the mandatory steps; returns why the daemon cannot start, or ""."""
        mandatory = [step for step in self.steps.values() if step.said.mandatory]
        failed: list[str] = []

        async def take(step: Step, scope: trio.CancelScope) -> None:
            await self._required(step)
            self._tell(f"starting · boot step {step.said.name}", step.said.timeout_s)
            if not await step.attempt():
                failed.append(f'the boot step "{step.said.name}" failed: {step.text}')
                scope.cancel()

        if mandatory:
            async with trio.open_nursery() as nursery:
                for step in mandatory:
                    nursery.start_soon(take, step, nursery.cancel_scope)
        return failed[0] if failed else ""

    async def run(self) -> None:
        """Take the optional steps, each until it is done."""
        async with trio.open_nursery() as nursery:
            for step in self.steps.values():
                if not step.said.mandatory:
                    nursery.start_soon(self._until_done, step)

    async def _until_done(self, step: Step) -> None:
        await self._required(step)
        pause_s = PAUSE_MIN_S
        while not await step.attempt():
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _required(self, step: Step) -> None:
        for other in step.said.requires:
            await self.steps[other].done.wait()

    def gated(self, methods: Mapping[str, Method]) -> dict[str, Method]:
        """The control methods while the mandatory steps are taken: most of them have to wait."""

        async def wait(_params: dict[str, Any], _caller: Caller) -> Any:
            names = [name for name, step in self.steps.items() if step.said.mandatory and step.state != DONE]
            raise RefusedError(
                f"the daemon is starting: it waits for the boot steps {', '.join(names)}",
                kind="try_later",
                hint="coordctl status",
            )

        return {name: method if name in ANSWERED else method._replace(call=wait) for name, method in methods.items()}

    def view(self) -> list[dict[str, Any]]:
        """As in `status`."""
        return [step.view() for step in self.steps.values()]

    def checks(self) -> list[Check]:
        """For `doctor`."""
        return [step.check() for step in self.steps.values()]
