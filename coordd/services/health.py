"""Health: one line for `systemctl status`, and WATCHDOG=1 only after proof that everything makes progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
import trio

from coordd.core.ledger.words import RECOVERING
from coordd.ports import Notifier
from coordd.services.breakers.service import JobBreakers, open_breakers
from coordd.services.control.methods import active_jobs
from coordd.services.driver import Driver
from coordd.services.ledger import CONNECTED, FOREIGN, LedgerService, boottime
from coordd.services.pace import turn
from coordd.services.readiness import Readiness, stuck
from coordd.services.strategies.priorities import Priorities
from coordd.services.strategies.rooms import Rooms
from coordd.services.views.troubles import Troubles

log = structlog.get_logger("health")

# How often (seconds) the state is checked; more often if the watchdog needs it.
LOOK_S = 2.0

# Timeout (seconds) of our own ping to the control socket.
PING_S = 2.0

# How often (seconds) old files and rows are removed.
CLEAN_S = 3600.0


class Health:
    """Watches the daemon from inside."""

    def __init__(
        self,
        driver: Driver,
        ledger: LedgerService,
        troubles: Troubles,
        notifier: Notifier,
        *,
        control_path: str,
        check_launch: Callable[[], dict[str, str]],
        check_room: Callable[[], str],
        clean: Callable[[], None],
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """``look`` is called with each check, in the event loop; ``check_room`` too, in a thread."""
        self._driver = driver
        self._ledger = ledger
        self._troubles = troubles
        self._notifier = notifier
        self._control_path = control_path
        self._check_launch = check_launch
        self._check_room = check_room
        self._clean = clean
        self._look = look
        self._threads = trio.CapacityLimiter(2)  # its own: the shared ones may all be in use
        self._rooms = Rooms(driver)
        self.readiness = Readiness(driver, ledger)
        self._priorities = Priorities(driver, ledger)
        self._job_breakers = JobBreakers(driver)
        self._said = ""
        self.percents: Callable[[], Mapping[str, int]] = dict
        self.stuck = ""

    async def run(self) -> None:
        """Check for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._priorities.run)
            await self._check()

    async def _check(self) -> None:
        every_s = min(LOOK_S, (self._notifier.watchdog_s or 3 * LOOK_S) / 3)
        next_launch_check = next_clean = 0.0
        while True:
            now = boottime()
            if now >= next_launch_check:
                problems = await trio.to_thread.run_sync(self._check_launch, limiter=self._threads)
                self._driver.node.cannot_launch(problems)
                next_launch_check = now + 30.0
            if now >= next_clean:
                await trio.to_thread.run_sync(self._clean, limiter=self._threads)
                next_clean = now + CLEAN_S
            await self._rooms.look()
            self._driver.probe_journal()
            self._driver.look_at_bus()
            self._job_breakers.look()
            self._look()
            await self._look_for_room()
            self.readiness.look()
            self.say()
            if self._notifier.watchdog_s is not None:
                self.stuck = await self._proof()
                if self.stuck:
                    log.error("watchdog.withheld", reason=self.stuck)
                else:
                    self._notifier.notify("WATCHDOG=1")
            await turn(every_s)

    async def _look_for_room(self) -> None:
        """Whether the runtime directory can take another attempt."""
        node = self._driver.node
        failure = await trio.to_thread.run_sync(self._check_room, limiter=self._threads)
        if failure and not node.runtime_failure:
            log.error("runtime_dir.failed", reason=failure)
        elif node.runtime_failure and not failure:
            log.info("runtime_dir.written_again")
        node.runtime_failed(failure)

    def say(self) -> None:
        """Send STATUS= if it has changed."""
        line = self.line()
        if line != self._said:
            self._said = line
            self._notifier.notify(f"STATUS={line}")

    def line(self) -> str:
        """The state in one line, for people."""
        node = self._driver.node
        counts = node.member_counts()
        runs = len(node.pursuits.running)
        jobs = active_jobs(node.pursuits, self.percents())
        parts = [node.state]
        alarms = list(node.alarms.standing.values())
        if alarms:
            more = f" (and {len(alarms) - 1} more)" if len(alarms) > 1 else ""
            parts.append(f"ALARM: {alarms[0]['text']}{more}")
        if self._ledger.state == RECOVERING:
            # Rounded, so that the line does not change with every check.
            left_s = -(-self._ledger.recovering_s // 10) * 10
            parts.append(f"ledger recovering: nothing new starts for {left_s:.0f} s")
        elif self._ledger.state == FOREIGN:
            parts.append("another ledger than this node has used: nothing new starts")
        elif self._ledger.state != CONNECTED:
            parts.append(f"ledger {self._ledger.state}: nothing new starts")
        elif node.braked:
            parts.append(f"nothing new starts: {node.braked}")
        parts += [
            f"{counts['alive']} node{'s' if counts['alive'] != 1 else ''} alive",
            f"{runs} run{'s' if runs != 1 else ''} active" + (f" ({jobs})" if jobs else ""),
        ]
        parts.append(self.readiness.word())
        parts += filter(None, [self._troubles.found.sentence()])
        if node.clock_off:
            parts.append("wall clock off: no scheduled run is opened")
        if self._driver.bus.state == "disconnected":
            parts.append("bus disconnected")
        elif self._driver.bus.state == "off":
            parts.append("no gossip")
        waiting = self._driver.outbox.waiting if self._driver.outbox is not None else 0
        if waiting:
            parts.append(f"{waiting} message{'s wait' if waiting != 1 else ' waits'} for the bus")
        if node.unfit:
            parts.append(node.unfit)
        if node.aside:
            parts.append("leaves runs to other nodes: they fail here")
        names = open_breakers(self._driver)
        parts.append(f"breakers open: {', '.join(names)}" if names else "breakers closed")
        return " · ".join(parts)

    async def _proof(self) -> str:
        """The part that is stuck; "" when everything makes progress."""
        if late := stuck(self._driver):
            return late
        if self._driver.bus.state not in ("connected", "starting"):
            log.debug("bus.down", state=self._driver.bus.state)  # no reason to restart: runs launch without the bus
        with trio.move_on_after(PING_S) as scope:
            try:
                await self._ping()
            except OSError as exc:
                return f"the control socket does not answer: {exc}"
        return "the control socket does not answer" if scope.cancelled_caught else ""

    async def _ping(self) -> None:
        stream = await trio.open_unix_socket(self._control_path)
        async with stream:
            await stream.send_all(b'{"id":1,"method":"ping"}\n')
            if not await stream.receive_some(1024):
                raise OSError("closed")
