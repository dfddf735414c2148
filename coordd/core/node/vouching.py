"""A node vouches for a ledger that went back: it has restored what it knows, and says its mark (core/ledger/marks).

Once all have vouched that could have been granted anything, the ledger ends its quarantine early.
"""

from __future__ import annotations

from collections.abc import Callable

from coordd.core.context import Context
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import Vouch
from coordd.core.ledger.words import MARKS, OK, STALE
from coordd.core.ready import Now
from coordd.core.runs.witness import Witness

# How often (seconds) a node looks whether it has restored everything, and asks whether the others have vouched.
AGAIN_S = 0.25


class Vouching:
    """One request at a time."""

    __slots__ = ("_ctx", "_epoch", "_look_again", "_out", "_whole", "_witness")

    def __init__(self, ctx: Context, witness: Witness, look_again: Callable[[Now], None]) -> None:
        """``look_again``: sweep, because the quarantine is over."""
        self._ctx = ctx
        self._witness = witness
        self._look_again = look_again
        self._epoch = ""  # the life of the ledger, as the last sweep told it
        self._whole = ""  # the life whose quarantine lasts its whole time
        self._out = False

    def swept(self, answer: OpenAnswer, now: Now) -> None:
        """The ledger has told whether it is in quarantine."""
        self._epoch, self._ctx.recovering = answer.epoch, answer.recovering_s > 0
        self.go_on(now)

    def go_on(self, now: Now) -> None:
        """Vouch, if it is time."""
        ctx = self._ctx
        if not ctx.recovering or self._out or self._whole == self._epoch:
            return
        if not self._witness.has_restored_all or self._uncounted():
            ctx.arm(now.mono + AGAIN_S, "vouch")
            return
        self._out = True
        heard = ctx.heard
        # The daemon may have heard of a newer life already; then this is not a mark of the life before.
        life = heard.before if heard.life == self._epoch else ""
        ctx.ask(Vouch(host=ctx.hostname, life=life, grants=heard.mark), self._answered)

    def _uncounted(self) -> bool:
        """True if a member is known, even a lost one, of a version without marks: its grants are not counted."""
        return any(member.rules < MARKS for member in self._ctx.membership.members.values())

    def _answered(self, answer: Answer, _sent_at: float, now: Now) -> None:
        self._out = False
        if answer.word == OK:
            self._look_again(now)
        elif answer.word == STALE:
            self._whole = self._epoch
        else:
            self._ctx.arm(now.mono + AGAIN_S, "vouch")
