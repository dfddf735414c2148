"""Whose ledger it is: each has an identity, made once and kept in it, and who has used one accepts no other.

A node that asks another ledger than its peers (a wrong database number, a second Redis, a file of its own) would
launch every job a second time. So a caller brings its *pin*, the identity that it has used, and is refused by a ledger
that has another one. Three cases are no other ledger:

- the ledger names the pin as its ``predecessor``: it was closed, exported and imported here; the caller moves its pin;
- the ledger has no identity, at the very address at which the caller pinned its own: it was flushed, or restored from
  before it had one; the pin is written back, and what it forgot is restored in the quarantine that this opens;
- somebody without a pin gave such a ledger an identity of its own in that quarantine: that one makes way for the pin.

The rule stands here for ledgers that are asked in Python, and in lua/shared/begin.lua for Redis. Loaded by the runner
before it starts a job, so it imports nothing but the errors.
"""

from coordd.errors import ForeignLedgerError, LedgerClosedError, RefusedError, UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Meta(Protocol):
        """What a ledger keeps of itself: texts by name; "" is not there."""

        def meta(self, key: str) -> str: ...
        def put_meta(self, key: str, value: str) -> None: ...


# Names in the ledger's ``meta``.
IDENTITY = "identity"  # 16 hexadecimal digits, made once
PREDECESSOR = "predecessor"  # the identity of the closed ledger that this one continues
CLOSED = "closed"  # who closed it, and when
PROVISIONAL = "provisional"  # "1": the identity was given by somebody without a pin, in a quarantine

# What a ledger answers instead of anything else.
IS_CLOSED = "closed"
IS_FOREIGN = "foreign"


class Known:
    """What a caller knows of its ledger; the connections of one node share it.

    ``mark`` is the mark of the ledger's life that it saw last; "" when it never saw one, which makes the quarantine of
    an empty ledger short. ``pin`` is the identity that it has used ("": none yet) and ``pinned_at`` where that was;
    ``address`` is where it asks now. ``proposal`` is the identity that it gives to a ledger that has none. What an
    answer said last: ``found`` and ``predecessor``.
    """

    __slots__ = ("address", "found", "mark", "pin", "pinned_at", "predecessor", "proposal")

    def __init__(
        self, mark: str = "", *, pin: str = "", pinned_at: str = "", address: str = "", proposal: str = ""
    ) -> None:
        self.mark = mark
        self.pin = pin
        self.pinned_at = pinned_at
        self.address = address
        self.proposal = proposal
        self.found = ""
        self.predecessor = ""

    @property
    def at_home(self) -> bool:
        """The ledger that is asked now stands where the pinned one stood."""
        return self.pinned_at == self.address

    def use(self, pin: str) -> None:
        """From now on this identity, found at this address, and no other."""
        self.pin, self.pinned_at = pin, self.address


def admit(store: "Meta", known: Known, *, recovering: bool) -> str:
    """ "" when this caller may use this ledger, IS_CLOSED or IS_FOREIGN when not; its identity is then ``known.found``.

    ``recovering``: the ledger is in quarantine. An identity that it lacks is written.
    """
    if store.meta(CLOSED):
        return IS_CLOSED
    found, predecessor, pin = store.meta(IDENTITY), store.meta(PREDECESSOR), known.pin
    if pin and found != pin:
        makes_way = known.at_home and (not found or (recovering and store.meta(PROVISIONAL) == "1"))
        if makes_way:
            found = pin
            store.put_meta(IDENTITY, pin)
            store.put_meta(PROVISIONAL, "")
        elif not found or predecessor != pin:
            known.found = found
            return IS_FOREIGN
    elif not found and known.proposal:
        found = known.proposal
        store.put_meta(IDENTITY, found)
        store.put_meta(PROVISIONAL, "1" if recovering else "")
    known.found, known.predecessor = found, predecessor
    return ""


def begin_again(store: "Meta", predecessor: str, made: str) -> None:
    """An import: the ledger continues a closed one under an identity made for it; without one it stays what it is.

    Raises RefusedError when it is closed and the rows are a mere copy: nobody could tell it from the one before.
    """
    if predecessor:
        for key, value in ((IDENTITY, made), (PREDECESSOR, predecessor), (CLOSED, ""), (PROVISIONAL, "")):
            store.put_meta(key, value)
    elif store.meta(CLOSED):
        raise RefusedError(
            "the ledger was closed, and these rows are a copy that does not continue it",
            kind="closed",
            hint="take the file that `ledger export --close` wrote, or another ledger",
        )


def refusal(word: str, ledger: str, known: Known) -> UnavailableError:
    """The error for IS_CLOSED or IS_FOREIGN, in a sentence that says what to do. ``ledger``: its address."""
    if word == IS_CLOSED:
        return LedgerClosedError(
            f"ledger {ledger}: it was closed by `coordctl ledger export --close`, and answers nobody any more: set"
            " [cluster] ledger to the one into which the export was imported, and restart"
        )
    where = f" at {known.pinned_at}" if known.pinned_at and not known.at_home else ""
    here = f"has the identity {known.found}" if known.found else "has none (it is empty, or new)"
    return ForeignLedgerError(
        f"ledger {ledger}: it is another ledger: this node has used the one with the identity {known.pin}{where}, this"
        f" one {here}. Nothing is launched from it. Is [cluster] ledger wrong here, mend it and restart; was the ledger"
        " replaced on purpose, and does no node use the old one any more: `coordctl ledger accept-identity`"
    )
