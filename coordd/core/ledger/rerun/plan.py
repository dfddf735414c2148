"""Which runs are to run once more after a run that a person has run once more: the note of the hold ``rerun:RUN``.

It is one line of JSON, a list of items, parents before their children:

    [RUN, COUNT, ON, ANY, [[[RUN, COUNT], ...], ...]]

COUNT: the members of a group, 0 for a run. ON: how its parents must end; ANY: 1 if one of them is enough. Then, for
each parent's job, its runs in the period.
"""

from coordd.core.ledger.words import FAILURE, LOST, SUCCESS, Record

# Which ends fit; None: each.
FITS: "dict[str, frozenset[str] | None]" = {
    "success": frozenset((SUCCESS,)),
    "failure": frozenset((FAILURE, LOST)),
    "done": None,
}

# A plan has at most this many items, which is as many reads and more in one step of the ledger.
ITEMS_MAX = 100
# And at most this many rows, with the members of groups and the parents that do not run again.
ROWS_MAX = 2000
TEXT_MAX = 60_000


class Runs(Record):
    """A run, or the ``count`` members of a group."""

    wire = ("run", "count")
    __slots__ = wire

    def __init__(self, run: str, count: int = 0) -> None:
        self.run = run
        self.count = count

    def rows(self) -> "list[str]":
        """The ids of its rows."""
        return [f"{self.run}~{number}" for number in range(self.count)] if self.count else [self.run]


class Item(Record):
    """A run that is to run once more. ``parents``: for each parent's job, its runs in the period."""

    wire = ("runs", "on", "any", "parents")
    __slots__ = wire

    def __init__(self, runs: Runs, on: str, any: bool, parents: "tuple[tuple[Runs, ...], ...]") -> None:  # noqa: A002 - the word of `after`
        self.runs = runs
        self.on = on
        self.any = any
        self.parents = parents


def text_of(items: "list[Item]") -> str:
    """As a ledger keeps it; "" for no items."""
    import json  # here: the runner loads this file's neighbours before it starts a job

    told = [
        [
            item.runs.run,
            item.runs.count,
            item.on,
            int(item.any),
            [[[one.run, one.count] for one in of_job] for of_job in item.parents],
        ]
        for item in items
    ]
    return json.dumps(told, separators=(",", ":")) if items else ""


def read(text: str) -> "list[Item]":
    """The inverse of ``text_of``; of a damaged one, no items: nothing runs."""
    import json

    try:
        items = [
            Item(
                Runs(str(run), int(count)),
                str(on),
                bool(any_),
                tuple([tuple([Runs(str(one), int(members)) for one, members in of_job]) for of_job in parents]),
            )
            for run, count, on, any_, parents in json.loads(text)
        ]
    except (ValueError, TypeError, OverflowError, RecursionError):
        return []
    runs = [one for item in items for one in (item.runs, *[of for of_job in item.parents for of in of_job])]
    bounded = len(items) <= ITEMS_MAX and all(0 <= one.count <= ROWS_MAX for one in runs)
    is_sound = bounded and sum(max(1, one.count) for one in runs) <= ROWS_MAX
    return items if is_sound and all(item.on in FITS for item in items) else []
