"""Health: one line for `systemctl status`, and WATCHDOG=1 only after proof that everything makes progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import structlog
import trio

from coordd.core.ledger.words import RECOVERING
from coordd.errors import UnavailableError
from coordd.ports import Notifier
from coordd.services.breakers.changes import BreakerChanges
from coordd.services.breakers.service import JobBreakers, open_breakers
from coordd.services.checks.startable import Startable
from coordd.services.control.methods import active_jobs
from coordd.services.driver import Driver
from coordd.services.ledger import CONNECTED, FOREIGN, LedgerService, boottime
from coordd.services.pace import in_thread, turn
from coordd.services.readiness import Readiness, stuck
from coordd.services.strategies.brought import Brought
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

# A clean-up that takes longer (seconds) is told in the log.
CLEAN_LONG_S = 60.0

# How often (seconds) it is looked at what this node can start; new verdicts are told after each of these steps.
LAUNCH_S = 30.0
STEP_S = 1.0


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
        startable: Startable,
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
        self._startable = startable
        self._check_room = check_room
        self._clean = clean
        self._look = look
        # Its own: the shared ones may all be in use. The first is for all that must not wait for a slow disk.
        self._threads, self._cleaning = trio.CapacityLimiter(2), trio.CapacityLimiter(1)
        self.brought = Brought()
        self._rooms = Rooms(driver, self.brought)
        self.readiness = Readiness(driver, ledger)
        self._priorities = Priorities(driver, ledger, self.brought)
        self._job_breakers, self._breaker_changes = JobBreakers(driver), BreakerChanges(driver)
        self._said = ""
        self._no_thread = False
        self.percents: Callable[[], Mapping[str, int]] = dict
        self.stuck = ""

    async def run(self) -> None:
        """Check for ever."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.brought.run)
            nursery.start_soon(self._priorities.run)
            nursery.start_soon(self._look_at_launches)
            nursery.start_soon(self._clean_up)
            await self._check()

    async def _look_at_launches(self) -> None:
        """What this node can start; no disk holds up more than the jobs that need it, least of all the watchdog."""
        look = partial(self._startable.look, STEP_S)
        while True:
            next_look = boottime() + LAUNCH_S
            unfinished = True
            while unfinished:
                if not await self._in_thread(look, self._threads, abandon_on_cancel=True):
                    await turn(LOOK_S)
                    continue
                self._driver.node.cannot_launch(self._startable.found())
                unfinished = self._startable.unfinished
            while boottime() < next_look and not self._startable.unfinished:  # a reload begins a look, too
                await turn(LOOK_S)

    async def _clean_up(self) -> None:
        """Remove what is old; a disk that is slow, or hangs, leaves it there, and that is all."""
        while True:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._says_that_it_takes_long)
                await self._in_thread(self._clean, self._cleaning, abandon_on_cancel=True)
                nursery.cancel_scope.cancel()
            await trio.sleep(CLEAN_S)

    async def _says_that_it_takes_long(self) -> None:
        await trio.sleep(CLEAN_LONG_S)
        log.warning("clean.takes_long", seconds=CLEAN_LONG_S, effect="what is old stays meanwhile, nothing else waits")

    async def _check(self) -> None:
        every_s = min(LOOK_S, (self._notifier.watchdog_s or 3 * LOOK_S) / 3)
        while True:
            await self._rooms.look()
            self._driver.probe_journal()
            self._driver.look_at_bus()
            self._breaker_changes.look(self._job_breakers.look())
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
        found: list[str] = []
        if not await self._in_thread(lambda: found.append(self._check_room()), self._threads):
            return  # what it said before holds on
        failure = found[0]
        if failure and not node.runtime_failure:
            log.error("runtime_dir.failed", reason=failure)
        elif node.runtime_failure and not failure:
            log.info("runtime_dir.written_again")
        node.runtime_failed(failure)

    async def _in_thread(
        self, act: Callable[[], None], limiter: trio.CapacityLimiter, *, abandon_on_cancel: bool = False
    ) -> bool:
        """False if the machine has no room for a thread: the watchdog must not end the daemon for that."""
        try:
            await in_thread(act, limiter, abandon_on_cancel=abandon_on_cancel)
        except UnavailableError as exc:
            if not self._no_thread:
                log.error("machine.no_thread", reason=str(exc), effect="the ledger may not be asked meanwhile")
            self._no_thread = True
            return False
        self._no_thread = False
        return True

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
