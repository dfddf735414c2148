"""What a runner's attempt wants done, and the terms that it gets with the grant.

Like attempt.py this file is loaded before a job starts, so it imports nothing.
"""

# The words of ``Action``.
ASK_GATE = "ask_gate"
ASK_RENEW = "ask_renew"
ASK_REPORT = "ask_report"
ASK_RESTORE = "ask_restore"
EXEC = "exec"
TERM = "term"
KILL = "kill"
PET = "pet"
EXIT = "exit"


class Terms:
    """The terms of an attempt. Durations in seconds; ``deadline`` on CLOCK_BOOTTIME."""

    __slots__ = (
        "deadline",
        "final_exit_codes",
        "kill_grace_s",
        "lease_s",
        "ledger_timeout_s",
        "on_lost",
        "renew_interval_s",
        "timeout_s",
    )

    def __init__(
        self,
        *,
        deadline: float,
        lease_s: float,
        renew_interval_s: float,
        ledger_timeout_s: float,
        kill_grace_s: float,
        on_lost: str,
        timeout_s: float = 0.0,
        final_exit_codes: "tuple[int, ...]" = (),
    ) -> None:
        self.deadline = deadline
        self.lease_s = lease_s
        self.renew_interval_s = renew_interval_s
        self.ledger_timeout_s = ledger_timeout_s
        self.kill_grace_s = kill_grace_s
        self.on_lost = on_lost
        self.timeout_s = timeout_s
        self.final_exit_codes = final_exit_codes


class Action:
    """Something that the process is to do; where a word does not say it all, a class of its own does."""

    __slots__ = ("word",)

    def __init__(self, word: str) -> None:
        self.word = word


class Pet(Action):
    """The watcher may count on the lease until ``deadline``."""

    __slots__ = ("deadline",)

    def __init__(self, deadline: float) -> None:
        self.word = PET
        self.deadline = deadline


class AskGate(Action):
    """Ask the gate; the ledger may answer that long ahead of the fire time (seconds)."""

    __slots__ = ("ahead_s",)

    def __init__(self, ahead_s: float) -> None:
        self.word = ASK_GATE
        self.ahead_s = ahead_s


class Exec(Action):
    """Execute the program ``at`` that instant, which is now or within HEAD_START_S, and never before."""

    __slots__ = ("at",)

    def __init__(self, at: float) -> None:
        self.word = EXEC
        self.at = at


class AskReport(Action):
    """Tell the ledger how it ended."""

    __slots__ = ("exit_code", "final", "reason", "state")

    def __init__(self, state: str, exit_code: "int | None", reason: str, final: bool) -> None:
        self.word = ASK_REPORT
        self.state = state
        self.exit_code = exit_code
        self.reason = reason
        self.final = final


class AskRestore(Action):
    """The ledger went back and has forgotten the grant: tell it, and the ``state`` that the attempt is in."""

    __slots__ = ("state",)

    def __init__(self, state: str) -> None:
        self.word = ASK_RESTORE
        self.state = state
