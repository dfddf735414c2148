"""Answers the questions of a command of `coordd exec`, and of a body of coordd.single: the daemon asks the ledger."""

from coordd.core.ledger.answers import Answer
from coordd.runner.sockets.guard import Guard, GuardAsker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.runner_requests import Request


class HeldAsker(GuardAsker):
    """Asks the daemon, which answers both questions whole."""

    def call(self, request: "Request[Answer]") -> "Answer | None":
        """Ask in place; None without an answer in time."""
        return super(GuardAsker, self).call(request)


class HeldGuard(Guard):
    """The guard of a runner that no daemon has started."""

    make_asker = HeldAsker
