"""The ledger across a network: calls that are lost on the way, a clock that steps, and a store that goes back.

Of one machine's ledger nothing is forgotten. That of a cluster may lose its last writes, as Redis does by a failover,
a restart from an old snapshot, a flush. It knows that it did, and opens a quarantine: a whole lease and what a replica
may lag behind, counted on its own clock from the first operation that finds it so, for all callers alike.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coordd.adapters.memory import MemoryLedger, MemoryStore
from coordd.core.rows import OK, LedgerTime
from simulator.terms import LAG_S, LEASE, LEDGER_TIMEOUT, OLD_S, WALL

if TYPE_CHECKING:
    from simulator.world import Host, World


# Replies to one question that are lost one after the other: more would cut a runner off from the ledger, which is
# another fault, with a name of its own.
LOST_IN_A_ROW = 2


@dataclass(slots=True)
class Setback:
    """One time that the ledger went back."""

    kept_to: float  # what was written after this was forgotten; 0.0: everything
    at: float
    kind: str
    opens_at: float = float("inf")  # the end that its quarantine must have, once an operation has found it
    shortened: bool = False  # the ledger's clock was set forward in the quarantine


class Server:
    """The one ledger of a world."""

    def __init__(self, world: World, rate: float) -> None:
        self.world = world
        self.rate = rate
        self.step = 0.0
        self.down_until = 0.0
        self.ledger = MemoryLedger(clock=self.time)
        self.answers: Counter[str] = Counter()
        self.setbacks: list[Setback] = []
        self._history: deque[tuple[float, MemoryStore]] = deque()
        self.open_at = 0.0  # the end of the quarantine, by the ledger's clock
        self._unanswered: Counter[tuple[str, str]] = Counter()  # (operation, run) -> replies lost, one after the other
        self.caller = ""  # whose operation is being done
        self._new_epoch = False

    # ---- time

    def time(self) -> LedgerTime:
        wall = self.wall()
        return LedgerTime(wall, wall, recovering_s=self.recovering_s(wall))

    def wall(self) -> float:
        return WALL + self.world.now * self.rate + self.step

    def recovering_s(self, wall: float) -> float:
        """What is left of the quarantine."""
        return max(0.0, self.open_at - wall)

    def begin_quarantine(self) -> None:
        """An operation finds that the ledger went back."""
        self.open_at = self.wall() + LEASE + LAG_S

    def _found(self) -> None:
        self._new_epoch = False
        for setback in self.setbacks:
            setback.opens_at = min(setback.opens_at, self.world.now + (LEASE + LAG_S) / self.rate)
        self.world.say(f"the ledger is in quarantine for {LEASE + LAG_S:.0f} s")
        self.begin_quarantine()

    # ---- calls

    def ask(self, host: Host, op: str, args: tuple[Any, ...], answered: Callable[[Any], None]) -> None:
        """One call: it may be lost on the way there (never executed) or back (executed, unanswered)."""
        world = self.world
        state = [False]

        def finish(answer: Any) -> None:
            if not state[0]:
                state[0] = True
                answered(answer)

        world.at(LEDGER_TIMEOUT / host.rate, finish, None)
        if self.reaches(host):
            world.at(world.rng.uniform(0.0005, 0.02), self._execute, host, op, args, finish)

    def reaches(self, host: Host) -> bool:
        """That machine's calls arrive here."""
        return self.world.now >= host.ledger_cut and self.world.now >= self.down_until

    def _execute(self, host: Host, op: str, args: tuple[Any, ...], finish: Callable[[Any], None]) -> None:
        if not self.reaches(host):
            return
        world = self.world
        self.caller = host.name
        if self._new_epoch:
            self._found()
        what = args[0].of.run if op == "claim" else getattr(args[0], "run", args[0]) if op != "open" else ""
        before = self.ledger.run(what) if what else None
        try:
            answer = self.ledger.call(op, *args)
        except AssertionError as exc:
            world.violate(f"S5 {exc}")
        if world.forgets and op != "open":
            self._history.append((world.now, self.ledger.snapshot()))
        if world.trace is not None and (op not in ("open", "renew") or answer.word != OK):
            said = f" {args[1]} {args[6]}" if op == "restore" else ""
            world.say(f"{host.name} {op} {what}{said} -> {answer!r}")
        self.answers[answer.word] += 1
        if op != "open":
            world.judge.operation(op, args, answer, before, self.ledger.run(what))
        if "lost_reply" in world.faults and not world.chaos_over and world.rng.random() < 0.1:
            self._unanswered[op, what] += 1
            if self._unanswered[op, what] <= LOST_IN_A_ROW:
                world.fault_log["lost_reply"] += 1
                return
        self._unanswered[op, what] = 0
        world.at(world.rng.uniform(0.0005, 0.02), finish, answer)

    # ---- what befalls it

    def fault(self, fault: str, amount: float) -> None:
        """``amount``: for how long it is away, or by how much its clock steps."""
        world = self.world
        world.fault_log[fault] += 1
        world.say(f"FAULT {fault} {amount:.2f}")
        if fault == "ledger_step":
            for setback in self.setbacks:
                if world.now < setback.opens_at:
                    setback.shortened = True
            self.step += amount
            return
        self.down_until = max(self.down_until, world.now + amount)
        if fault != "ledger_down":
            self._go_back(fault)

    def _go_back(self, kind: str) -> None:
        world = self.world
        lost_s = world.rng.uniform(0.0, LAG_S if kind == "failover" else OLD_S)
        kept_to = 0.0 if kind == "flush" else max(0.0, world.now - lost_s)
        while self._history and self._history[-1][0] > kept_to:
            self._history.pop()
        self.ledger.restore(self._history[-1][1] if self._history else MemoryStore())
        self.setbacks.append(Setback(kept_to, world.now, kind))
        world.say(f"the ledger has forgotten what was written after {kept_to:.3f}")
        self._new_epoch = True
