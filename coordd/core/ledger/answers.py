"""The ledger's answer to a request; open_answer.py has the answer to a sweep.

The runner loads this file before it starts a job, so it imports only its neighbours.
"""

from coordd.core.ledger.words import AttemptNumber, Record, Token

TYPE_CHECKING = False
if TYPE_CHECKING:
    pass


class Held(Record):
    """The holder of an attempt, as watchers see it: its token, and its last beat (0: the grant)."""

    wire = ("token", "beat")
    __slots__ = wire

    def __init__(self, *, token: Token, beat: int) -> None:
        self.token = token
        self.beat = beat


class Ended(Record):
    """An attempt that this very operation has ended (token 0: none was granted yet), with the definition, the policy
    and the lease of its row.
    """

    wire = ("attempt", "token", "nonce", "node", "reason", "digest", "policy", "lease_s")
    __slots__ = wire

    def __init__(
        self,
        *,
        attempt: AttemptNumber,
        token: Token,
        nonce: str,
        node: str,
        reason: str,
        digest: str,
        policy: str,
        lease_s: float,
    ) -> None:
        self.attempt = attempt
        self.token = token
        self.nonce = nonce
        self.node = node
        self.reason = reason
        self.digest = digest
        self.policy = policy
        self.lease_s = lease_s


NOBODY = Held(token=Token(0), beat=0)


class Answer:
    """An answer: ``word``, and the fields that belong to the word (seconds are relative).

    ``held`` belongs to the word HELD. ``ended`` is set if this very operation has ended an attempt: the caller
    publishes it, so that the history knows, and a witness can restore it exactly.
    """

    __slots__ = (
        "args",
        "attempt",
        "by",
        "ended",
        "epoch",
        "grants",
        "held",
        "in_s",
        "left_s",
        "state",
        "token",
        "word",
    )

    def __init__(
        self,
        word: str,
        *,
        token: int = 0,
        left_s: float = 0.0,
        in_s: float = 0.0,
        by: str = "",
        attempt: int = 0,
        state: str = "",
        args: str = "",
        held: Held = NOBODY,
        ended: "Ended | None" = None,
    ) -> None:
        self.ended = ended
        self.epoch = ""  # the life of the ledger that answers, and how many grants that has made (core/ledger/marks)
        self.grants = 0
        self.word = word
        self.token = Token(token)
        self.left_s = left_s
        self.in_s = in_s
        self.by = by
        self.attempt = AttemptNumber(attempt)
        self.state = state
        self.args = args
        self.held = held

    def __repr__(self) -> str:
        fields = [
            f"{k}={getattr(self, k)!r}"
            for k in self.__slots__
            if k not in ("word", "epoch", "grants") and getattr(self, k) not in ("", 0, None, NOBODY)
        ]
        return f"{self.word}({', '.join(fields)})"
