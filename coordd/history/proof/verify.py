"""Reads journals and judges them: the one function behind `coordd history verify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coordd.history.proof.judge import BREACH, CLOCK_SKEW_S, NOTICE, Finding, Judge
from coordd.history.proof.reading import Journal, find, missing


class Proof(NamedTuple):
    """The findings, breaches first, and what was read."""

    findings: list[Finding]
    journals: int
    nodes: int
    lines: int
    launches: int
    runs: int
    chains: int
    records: int

    @property
    def breaches(self) -> int:
        """How many findings break a promise."""
        return sum(finding.severity == BREACH for finding in self.findings)

    def sentences(self) -> list[str]:
        """The result, for people."""
        read = (
            f"read: {self.journals} journals of {self.nodes} nodes, {self.lines} lines, {self.launches} launches of"
            f" {self.runs} runs, {self.chains} chains of {self.records} audit records"
        )
        notices = len(self.findings) - self.breaches
        if self.breaches:
            return [read, f"{self.breaches} breaches, {notices} notices"]
        proven = "no run was launched twice, no attempts overlapped, every chain is whole"
        return [read, f"{proven}{f'; {notices} notices name gaps in the proof' if notices else ''}"]


def verify(places: Sequence[str], clock_skew_s: float = CLOCK_SKEW_S) -> Proof:
    """Judge the journals in these directories. Raises UnavailableError when one cannot be read."""
    judge = Judge(clock_skew_s)
    journals = find(places)
    for journal in journals:
        judge.begin(is_copy=journal.head is None)
        for line, is_open in journal.lines():
            judge.take(line, last=is_open)
        judge.finish_journal(journal.head, journal.head_now(), journal.directory)
    findings = judge.verdict() + [_gap(journal, gaps) for journal in journals if (gaps := missing(journal))]
    counts = (len(journals), len(judge.nodes), judge.lines, judge.launches, judge.runs, judge.chains, judge.records)
    return Proof(findings, *counts)


def _gap(journal: Journal, gaps: list[str]) -> Finding:
    numbers = ", ".join(gaps[:20])
    return Finding("segment_missing", NOTICE, "", f"not here: segments {numbers}", ((journal.directory, 0),))
