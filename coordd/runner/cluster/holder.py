"""The runner of an attempt whose driver is on a cluster."""

from coordd.core.actions import Action, AskReport
from coordd.core.ledger.words import FAILURE, LOST, REVOKED, SUCCESS
from coordd.runner.holder import Runner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.runner.sockets.guard import Guard

# Ends that mean: nothing of the run is left. Only the tracker can tell.
OVER = (SUCCESS, FAILURE, REVOKED)


class ClusterRunner(Runner):
    """As Runner. The application outlives the program, so the end of the program alone is not the end of the run."""

    application_id = ""

    def _follows(self, application_id: str) -> None:
        """The tracker has found the application of the run."""
        if application_id and application_id != self.application_id:
            self.application_id = application_id
            self._identified(application_id)

    def _application_id(self) -> str:
        return self.application_id

    def _do(self, action: Action) -> None:
        if isinstance(action, AskReport) and action.state in OVER and self.output is not None and not self._is_over():
            reason = action.reason or "its tracker ended"
            action = AskReport(LOST, action.exit_code, f"{reason}; whether its application has ended is unknown", False)
        super()._do(action)

    def _is_over(self) -> bool:
        return bool(getattr(self.guard, "over", False))

    def _make_guard(self) -> "Guard":
        from coordd.runner.cluster.questions import Questions

        return Questions(self.spec, self.guard_address, self.loop, self.attempt, self._follows)
