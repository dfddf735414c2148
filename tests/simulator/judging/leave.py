"""Whether a program may start: the gate has let it through, its time has come, and nobody was told that it will not."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Cancel, Revoke
from coordd.core.ledger.runner_requests import Gate, Request
from coordd.core.ledger.words import GATE_AHEAD_S, OK, RECEIVED, REVOKED

if TYPE_CHECKING:
    from coordd.core.ready import Launch
    from simulator.world import World

# Equal instants may differ by this much (seconds), because clocks are rounded.
EXACT_S = 0.001

# Every attempt of a run.
ANY = -1


class Leave:
    """What the ledger and the people of one world have said about starts."""

    def __init__(self, world: World) -> None:
        self.world = world
        # (run, attempt, token, nonce) that the gate let through -> the fire time in true time, by the ledger's clock
        # as it was then
        self.gated: dict[tuple[str, int, int, str], float] = {}
        # run -> the attempt of which it was acknowledged that it will not start, or ANY
        self.forbidden: dict[str, int] = {}

    def operation(self, request: Request[Any], answer: Answer, before: Any) -> None:
        """Check one operation of the ledger. ``before``: the row of the run before it."""
        if answer.word != OK:
            return
        if isinstance(request, Gate):
            self._let_through(request, before)
        elif isinstance(request, Revoke | Cancel) and answer.state in (REVOKED, RECEIVED):
            self.forbidden[request.run] = answer.attempt if answer.state == RECEIVED else ANY

    def _let_through(self, said: Gate, before: Any) -> None:
        """E: the gate lets no run through much before its fire time, by the ledger's clock as it is now.

        P: nor a run of a suspended job.
        """
        world, grant = self.world, said.grant
        run, server, key = grant.run, world.server, (grant.run, grant.attempt, grant.token, grant.nonce)
        left_s = nominal(run) - server.wall() if "@" in run else 0.0
        fires_at = world.now + left_s / server.rate
        self.gated[key] = min(fires_at, self.gated.get(key, fires_at))
        if left_s > GATE_AHEAD_S + EXACT_S:
            world.violate(f"E {run} was let through the gate {left_s:.3f} s before its fire time")
        if before.state == RECEIVED and server.suspended(before.job):
            world.violate(f"P {run} was let through the gate while its job is suspended")

    def told_to_end(self, launch: Launch) -> None:
        """The runner was told to end before it has started anything."""
        self.forbidden[launch.run] = launch.attempt

    def launched(self, launch: Launch) -> None:
        """I3: the gate has let it through. E: it is not before its fire time.

        X: nobody was told that it will not start.
        """
        world = self.world
        fires_at = self.gated.get((launch.run, launch.attempt, launch.token, launch.nonce))
        if fires_at is None:
            world.violate(f"I3 {launch.run}/{launch.attempt} was launched, and the ledger has not let it through")
        elif world.now < fires_at - EXACT_S:
            world.violate(f"E {launch.run} was launched {fires_at - world.now:.4f} s before its fire time")
        if self.forbidden.get(launch.run) in (ANY, launch.attempt):
            world.violate(f"X {launch.run}/{launch.attempt} was launched, and somebody was told that it will not be")

    def is_another(self, run: str) -> None:
        """From now on, a request for this run asks for a new run."""
        self.forbidden.pop(run, None)

    def went_back(self) -> None:
        """The ledger may have forgotten what it has acknowledged."""
        self.forbidden.clear()


def nominal(run: str) -> float:
    """The fire time that a scheduled run's id names, as Unix seconds."""
    return datetime.fromisoformat(run.partition("@")[2].partition("~")[0]).timestamp()
