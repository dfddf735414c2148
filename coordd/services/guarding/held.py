"""The control methods by which the holder of a run of `coordd exec` answers its program: owner, commit, inputs."""

from __future__ import annotations

from typing import Any

from coordd.core.jobs.job import EXEC_DIGEST
from coordd.core.jobs.owner import standing
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.inputs.memory import Told, tell, told_of
from coordd.core.ledger.runner_requests import Commit
from coordd.core.ledger.words import STALE
from coordd.core.ready import Launch
from coordd.errors import RefusedError
from coordd.ports import Ledger
from coordd.services.control.callers import Caller, Method
from coordd.services.ledger import DRIVERS
from coordd.services.once.asked import held_of
from coordd.services.once.methods import ExecMethods


class ExecGuardMethods(ExecMethods):
    """The methods that `coordd exec` calls when its command asks."""

    def table(self) -> dict[str, Method]:
        """Every method, with the lowest role that may call it."""
        return {
            "exec.commit": Method(self.exec_commit),
            "exec.standing": Method(self.exec_standing),
            "exec.input": Method(self.exec_input),
            **super().table(),
        }

    async def exec_standing(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Whether the attempt holds its run."""
        return await self._guard(params, commit=False)

    async def exec_commit(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """The commit of the run, if the attempt holds it."""
        return await self._guard(params, commit=True)

    async def exec_input(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """What the program says of one of its inputs, if the attempt holds its run."""
        told = told_of(params)
        if isinstance(told, str):
            raise RefusedError(told, kind="invalid_params")
        return await self._guard(params, commit=False, told=told)

    async def _guard(self, params: dict[str, Any], *, commit: bool, told: Told | None = None) -> dict[str, Any]:
        """As for the other methods of a holder, token and nonce prove the grant. They can commit that run alone."""
        held, now = held_of(params), self._driver.now().wall

        def ask(ledger: Ledger) -> Answer | None:
            answer = guarded(ledger, held, commit=commit)
            if answer is None or answer.word == STALE or told is None:
                return answer
            return tell(ledger, held.job, held.run, told, now)

        answer = await self._ledger.query(ask, whose=DRIVERS)
        if answer is None:
            raise RefusedError(f"{held.run} is not a run of coordd exec", kind="not_permitted")
        names = ("word", "left_s", "in_s", "state", "token", "by", "attempt")
        return {name: getattr(answer, name) for name in names}


def guarded(ledger: Ledger, held: Launch, *, commit: bool) -> Answer | None:
    """What the ledger says to the holder; None if the run is not one of `coordd exec`. Raises UnavailableError."""
    row = ledger.run(held.run)
    if row is None:
        return Answer(STALE)
    if not row.digest.startswith(EXEC_DIGEST):
        return None
    if commit:
        answer = ledger.ask(Commit(grant=held.grant))
        row = ledger.run(held.run) if answer.word == STALE else None
        if row is None:
            return answer
    return standing(row, held.token, held.nonce)
