"""The limits in a policy: how many runs may be alive at a time under a key, how many may start, how many may wait.

A policy's last word has them, separated by commas:

    slots:KEY=SIZE             at most SIZE runs hold a lease (or are UNKNOWN) under that key
    rate:KEY=COUNT/PERIOD_S    at most COUNT attempts start in any PERIOD_S seconds
    queue=SIZE/first|last      for ``overlap = "queue"``: how many may wait, and which of them are kept
    jitter=THOUSANDTHS         limits nothing: by how much the delay before a retry may grow (words.py reads it)

A key is ``pool/NAME``, ``job/NAME`` or ``job/NAME/TOKEN``. Where the ledger has a hold ``pool:NAME``, its note is the
size of that pool. An item that cannot be read limits nothing: the text comes from the node that claims. Only claims
read it, so the runner does not load this file.
"""

from coordd.core.ledger.words import QUEUE, QUEUE_MAX, RATE, SLOTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

POOL = "pool/"

# More digits are not a number: Python refuses to read thousands of them.
DIGITS_MAX = 300


def is_number(text: str) -> bool:
    """True for the digits of a whole number, as the scripts in Redis understand it too."""
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX


def slots(limits: str) -> "Iterator[tuple[str, int]]":
    """The keys whose slots a run takes, and how many there are of each."""
    for key, size in _items(limits, SLOTS):
        if is_number(size):
            yield key, int(size)


def rates(limits: str) -> "Iterator[tuple[str, int, int]]":
    """The keys whose starts are counted: how many are allowed, in how many seconds."""
    for key, said in _items(limits, RATE):
        count, _, period = said.partition("/")
        if is_number(count) and is_number(period):
            yield key, int(count), int(period)


def queue(limits: str) -> "tuple[int, str]":
    """How many runs of the job may wait, and whether the ``first`` or the ``last`` are kept."""
    for item in limits.split(","):
        size, _, keep = item.removeprefix(QUEUE).partition("/")
        if item.startswith(QUEUE) and is_number(size):
            return int(size), keep
    return QUEUE_MAX, "first"


def _items(limits: str, kind: str) -> "Iterator[tuple[str, str]]":
    for item in limits.split(","):
        if item.startswith(kind):
            key, _, said = item[len(kind) :].rpartition("=")
            yield key, said
