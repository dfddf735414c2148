"""The ledger as a holder of an attempt asks it through the daemon of its machine: gate, renew, report, restore.

`coordd exec` runs as any user, who has no password of the ledger. The daemon asks the ledger for it. The token and the
nonce prove the grant, as everywhere.
"""

import _thread

from coordd.adapters.control_line import ControlLine
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.runner_requests import Gate, Renew, Report, Restore
from coordd.errors import LocalProtocolError, RefusedError, UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from coordd.core.ledger.open_answer import OpenAnswer
    from coordd.core.ledger.runner_requests import Request

    A = TypeVar("A", bound="Answer | OpenAnswer")

SCHEME = "control:"

# The questions of the holder's program (runner/sockets/guard.py).
GUARD = ("commit", "standing", "input")


class LedgerByDaemon:
    """A connection for each request; threads take turns: a runner may report while a renewal is under way. ``about``:
    the parameters that name the run, as its claim had them.
    """

    def __init__(self, url: str, *, timeout_s: float, about: "dict[str, Any]") -> None:
        self.about = about
        self._line = ControlLine(url.removeprefix(SCHEME), timeout_s)
        self._turn = _thread.allocate_lock()

    def ask(self, request: "Request[A]") -> "A":
        """Perform one operation. Raises UnavailableError without an answer: it may have been performed."""
        method, params = f"exec.{request.op}", {**self.about, **fields(request)}
        if not self._turn.acquire(timeout=self._line.timeout_s):
            raise UnavailableError(f"{method}: no turn within {self._line.timeout_s:g} s at {self._line.path}")
        try:
            told = self._line.call(method, params)
        except RefusedError as exc:
            raise UnavailableError(f"{method}: {exc}") from exc
        finally:
            self._line.close()  # a uid has few places on the socket, and may have many holders
            self._turn.release()
        answer: A = Answer(
            str(told["word"]),
            left_s=float(told["left_s"]),
            in_s=float(told["in_s"]),
            state=str(told["state"]),
            token=int(told.get("token", 0)),
            by=str(told.get("by", "")),
            attempt=int(told.get("attempt", 0)),
        )  # type: ignore[assignment]  # each of these operations has this type of answer
        return answer

    def close(self) -> None:
        """Nothing stays open: a running call closes its connection."""


def fields(request: "Request[Any]") -> "dict[str, Any]":
    """The parameters of an operation, beside those that name the run."""
    if isinstance(request, Gate):
        return _grant(request)
    if isinstance(request, Renew):
        return {**_grant(request), "launched": request.launched}
    if isinstance(request, Report):
        end = {"state": request.state, "exit_code": request.exit_code, "reason": request.reason}
        return {**_grant(request), **end}
    if isinstance(request, Restore):
        return {**_grant(request), "state": request.state}
    if request.op == "input":
        told: Any = request.told  # type: ignore[attr-defined]  # it belongs to the runner's room
        about = {"input": told.input, "says": told.what, "limit": told.limit, "reason": told.reason}
        return {**_grant(request), **about}
    if request.op in GUARD:
        return _grant(request)
    raise LocalProtocolError(f"a holder does not ask for {request.op}")


def _grant(request: "Any") -> "dict[str, Any]":
    grant = request.grant
    return {"attempt": grant.attempt, "token": grant.token, "nonce": grant.nonce}
