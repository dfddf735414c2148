"""The sweep: reads the ledger's open rows every few seconds, so that no run is forgotten.

The rows come in pages. A run without a row is over, but only if all pages have come. An incomplete pass (no answer, or
the ledger went back) proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from coordd.core.context import Context
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import ListOpen, Page
from coordd.core.ledger.steps import HOLDING
from coordd.core.ledger.words import SILENCE_S
from coordd.core.ready import Now
from coordd.core.runs.pursuit import Pursuits

# A hint about a changed row makes the next sweep come sooner, but not closer than this (seconds) to the last one.
SWEEP_APART_S = 0.2

# What else uses the first page: (the page, or that there was no answer; when it was requested; now).
Swept = Callable[[Answer | OpenAnswer, float, Now], None]


class Sweep:
    """One request at a time."""

    __slots__ = (
        "_again",
        "_bad",
        "_begun_at",
        "_ctx",
        "_epoch",
        "_leased_s",
        "_out",
        "_pursuits",
        "_seen",
        "_sent_at",
        "_swept",
    )

    def __init__(self, ctx: Context, pursuits: Pursuits, swept: Swept) -> None:
        self._ctx = ctx
        self._pursuits = pursuits
        self._swept = swept
        self._sent_at = -SWEEP_APART_S
        self._out = False
        self._again = False  # state changed while a sweep was in flight
        self._seen: set[str] | None = None  # runs of the pages so far; None before the first
        self._bad: dict[str, str] = {}  # unusable rows of these pages
        self._leased_s = 0.0  # the longest lease in these pages
        self._begun_at = 0.0  # when the first page was requested
        self._epoch = ""

    def begin(self, now: Now) -> None:
        """Ask, unless a request is out."""
        if self._out or self._ctx.state not in ("ready", "draining"):
            return
        self._out = True
        self._sent_at = now.mono
        self._seen = None
        settings = self._ctx.settings
        silence_s = max(SILENCE_S, 2 * (settings.renew_interval_s + 2 * settings.ledger_timeout_s))
        asked = ListOpen(jobs=tuple(self._ctx.jobs), host=self._ctx.hostname, silence_s=silence_s)
        self._ctx.ask(asked, self._answered)

    def look_again(self, now: Now) -> None:
        """The ledger has changed: ask now, or again after the answer to the present request."""
        self._again = self._out
        self.begin(now)

    def soon(self, now: Now) -> None:
        """The ledger may have changed."""
        self._ctx.arm(max(now.mono, self._sent_at + SWEEP_APART_S), "sweep_soon")

    def _answered(self, answer: Answer | OpenAnswer, sent_at: float, now: Now) -> None:
        """One page, or no answer."""
        if isinstance(answer, OpenAnswer):
            self._page(answer, sent_at, now)
        else:
            self._out = False
            self._pursuits.unswept()
            self._swept(answer, sent_at, now)

    def _page(self, answer: OpenAnswer, sent_at: float, now: Now) -> None:
        first = self._seen is None
        self._ctx.compare_clocks(answer.wall, sent_at, now)
        if self._seen is None:
            self._seen, self._bad, self._begun_at, self._epoch = set(), {}, sent_at, answer.epoch
            self._leased_s = 0.0
        self._out = answer.after is not None
        if answer.after is not None:
            self._ctx.ask(Page(after=answer.after), self._answered)
        self._seen.update([row.run for row in answer.runs])
        self._bad.update(answer.bad)
        self._note_leases(answer)
        self._pursuits.rows_seen(answer.runs, now)
        if not self._out and answer.epoch == self._epoch:
            self._ctx.name_bad_rows(self._bad)
            self._pursuits.swept(self._seen, self._bad, answer.recovering_s > 0, self._begun_at, now)
        if first:
            self._swept(answer, sent_at, now)
        if not self._out and self._again:
            self._again = False
            self.soon(now)

    def _note_leases(self, answer: OpenAnswer) -> None:
        """Update the longest known lease. A quarantine must outlast every attempt, even one of a job that no node knows
        any more. A longer lease counts at once; it stops counting after a pass without it, unless the ledger has
        forgotten it.
        """
        ctx = self._ctx
        self._leased_s = max([self._leased_s, *[row.lease for row in answer.runs if row.state in HOLDING]])
        whole = not self._out and answer.epoch == self._epoch and answer.recovering_s <= 0
        ctx.leased_s = self._leased_s if whole else max(ctx.leased_s, self._leased_s)
