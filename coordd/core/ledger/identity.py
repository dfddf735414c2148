"""The identity of a ledger: created once and stored in it. A node that has used one ledger accepts no other.

A node with another ledger than its peers (a wrong database number, a second Redis, a file of its own) would launch
every job a second time. So a caller sends its *pin*, the identity that it has used, and a ledger with another identity
refuses it. Three cases are accepted:

- the ledger names the pin as its ``predecessor``: it was closed, exported and imported here; the caller moves its pin;
- the ledger has no identity, at the same address where the caller pinned it: it was flushed, or restored from an older
  backup; the pin is written back, and this opens a quarantine in which forgotten grants are restored;
- a caller without a pin gave such a ledger a new identity in that quarantine: the pin replaces it.

The rule is here for ledgers in Python, and in lua/shared/begin.lua for Redis. The runner loads this file before it
starts a job, so it imports only the errors.
"""

from coordd.errors import ForeignLedgerError, LedgerClosedError, RefusedError, UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Meta(Protocol):
        """The ledger's own values: texts by name; "" if missing."""

        def meta(self, key: str) -> str: ...
        def put_meta(self, key: str, value: str) -> None: ...


# Names of these values in the ledger's ``meta``.
IDENTITY = "identity"  # 16 hexadecimal digits, created once
PREDECESSOR = "predecessor"  # the identity of the closed ledger that this one continues
CLOSED = "closed"  # who closed it, and when
PROVISIONAL = "provisional"  # "1": a caller without a pin gave the identity, in a quarantine

# Answers that refuse any operation.
IS_CLOSED = "closed"
IS_FOREIGN = "foreign"


class Heard:
    """What a daemon was told by its ledger, on all its connections: the present life, and its mark in the life before
    (core/ledger/marks). A mark is the highest number of grants in that life's answers.
    """

    __slots__ = ("before", "grants", "life", "mark")

    def __init__(self) -> None:
        self.life = ""
        self.grants = 0
        self.before = ""  # the life before; "": this daemon was told nothing by it
        self.mark = 0

    def hear(self, life: str, grants: int) -> None:
        """One answer. One of the life before may be read late."""
        if life == self.life:
            self.grants = max(self.grants, grants)
        elif life and life == self.before:
            self.mark = max(self.mark, grants)
        elif life:
            self.before, self.mark = self.life, self.grants
            self.life, self.grants = life, grants


class Known:
    """A caller's knowledge of its ledger; all connections of one node share it.

    ``epoch`` is the last known epoch of the ledger; "" if the caller never saw one, which makes the quarantine of an
    empty ledger short. ``pin`` is the identity that it has used ("": none yet), at the address ``pinned_at``;
    ``address`` is the present one. ``proposal`` is the identity for a ledger that has none. ``found`` and
    ``predecessor`` are from the last answer; ``heard`` is from all of them.
    """

    __slots__ = ("address", "epoch", "found", "heard", "pin", "pinned_at", "predecessor", "proposal")

    def __init__(
        self, epoch: str = "", *, pin: str = "", pinned_at: str = "", address: str = "", proposal: str = ""
    ) -> None:
        self.epoch = epoch
        self.pin = pin
        self.pinned_at = pinned_at
        self.address = address
        self.proposal = proposal
        self.found = ""
        self.predecessor = ""
        self.heard = Heard()

    @property
    def at_home(self) -> bool:
        """True if the present ledger has the address of the pinned one."""
        return self.pinned_at == self.address

    def use(self, pin: str) -> None:
        """Accept only this identity from now on, found at this address."""
        self.pin, self.pinned_at = pin, self.address


def admit(store: "Meta", known: Known, *, recovering: bool) -> str:
    """Returns "" if this caller may use this ledger, otherwise IS_CLOSED or IS_FOREIGN.

    ``known.found`` then has the ledger's identity, unless it is closed.
    ``recovering``: the ledger is in quarantine. A missing identity is written.
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
    """An import: the ledger continues a closed one, under a new identity; otherwise its identity stays.

    Raises RefusedError if it is closed and the rows are only a copy: nobody could distinguish the two ledgers.
    """
    if predecessor:
        for key, value in ((IDENTITY, made), (PREDECESSOR, predecessor), (CLOSED, ""), (PROVISIONAL, "")):
            store.put_meta(key, value)
    elif store.meta(CLOSED):
        raise RefusedError(
            "the ledger was closed, and these rows are a copy that does not continue it",
            kind="closed",
            hint="use the file that `ledger export --close` wrote, or another ledger",
        )


def refusal(word: str, ledger: str, known: Known) -> UnavailableError:
    """The error for IS_CLOSED or IS_FOREIGN, with advice. ``ledger``: its address."""
    if word == IS_CLOSED:
        return LedgerClosedError(
            f"ledger {ledger}: it was closed by `coordctl ledger export --close`, and refuses every request: set"
            " [cluster] ledger to the one into which the export was imported, and restart"
        )
    where = f" at {known.pinned_at}" if known.pinned_at and not known.at_home else ""
    here = f"has the identity {known.found}" if known.found else "has none (it is empty, or new)"
    return ForeignLedgerError(
        f"ledger {ledger}: it is another ledger: this node has used the one with the identity {known.pin}{where}, this"
        f" one {here}. Nothing is launched from it. If [cluster] ledger is wrong here, correct it and restart. If the"
        " ledger was replaced on purpose and no node uses the old one, run `coordctl ledger accept-identity`."
    )
