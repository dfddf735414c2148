"""The table ``audit`` in plain Python, from all launches of each run and all grants of each job."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise

from history.oracle.reference import Row, date_of, launch_order

# As the driver has it by default: shorter overlaps (seconds) may be the difference of two clocks.
CLOCK_SKEW_S = 0.5

# Grants of different runs that are closer (seconds) have no certain order.
GRANT_ORDER_S = 5.0


def of_launches(attempts: Iterable[Row]) -> Iterator[Row]:
    """What the launches of each run show; all launches of a run must be there."""
    by_run: dict[str, list[Row]] = defaultdict(list)
    for row in attempts:
        by_run[row["run"]].append(row)
    for rows in by_run.values():
        if len(rows) > 1 or len(rows[0]["hosts"]) > 1:
            rows.sort(key=launch_order)
            yield from _twice(rows)
            yield from _overlaps(rows)
            yield from _unknown(rows)
            yield from _successes(rows)


def _finding(kind: str, severity: str, row: Row, at: float, detail: str) -> Row:
    named: Row = {name: row[name] for name in ("job", "run", "attempt") if name in row}
    return {"kind": kind, "severity": severity, **named, "at": at, "detail": detail, "date": date_of(at)}


def _twice(rows: list[Row]) -> Iterator[Row]:
    several: dict[tuple[str | None, int], list[Row]] = defaultdict(list)
    for row in rows:
        several[row.get("job"), row["attempt"]].append(row)
    for launches in several.values():
        who = sorted(
            f"{host} (token {row['token']}, nonce {row['nonce']})" for row in launches for host in row["hosts"]
        )
        if len(who) > 1:
            at = max(row["started"] for row in launches)
            yield _finding("launched_twice", "violation", launches[0], at, "launched by " + ", ".join(who))


def _overlaps(rows: list[Row]) -> Iterator[Row]:
    latest: tuple[float, int, str, Row] | None = None
    for row in rows:
        ended = row.get("ended")
        if latest is not None and row["started"] < latest[0]:
            alive = latest[0] if ended is None else min(ended, latest[0])
            alive_s = alive - row["started"]
            text = Decimal(repr(alive_s)).quantize(Decimal("0.001"), ROUND_HALF_UP)
            detail = (
                f"attempt {row['attempt']} on {row['hostname']} was alive for {text} s"
                f" beside attempt {latest[1]} on {latest[2]}"
            )
            severity = "violation" if alive_s > CLOCK_SKEW_S else "notice"
            yield _finding("overlap", severity, row, row["started"], detail)
        if ended is not None:
            this = (ended, row["attempt"], row["hostname"], row)
            latest = this if latest is None or this[:3] > latest[:3] else latest


def _unknown(rows: list[Row]) -> Iterator[Row]:
    for row, after in pairwise(rows):
        if "ended" not in row:
            detail = f"no journal tells how it ended on {row['hostname']}, and {after['hostname']} launched after it"
            yield _finding("end_unknown", "notice", row, row["started"], detail)


def _successes(rows: list[Row]) -> Iterator[Row]:
    by_job: dict[str | None, list[Row]] = defaultdict(list)
    for row in rows:
        if row.get("outcome") == "success":
            by_job[row.get("job")].append(row)
    for good in by_job.values():
        if len(good) > 1:
            on = ", ".join(sorted({row["hostname"] for row in good}))
            last = {**good[0], "attempt": max(row["attempt"] for row in good)}
            detail = f"{len(good)} launches succeeded, on {on}"
            yield _finding("succeeded_twice", "notice", last, max(row["ended"] for row in good), detail)


def of_grants(grants: Iterable[Row]) -> Iterator[Row]:
    """What the grants of each job show; all grants of a job must be there."""
    by_job: dict[str | None, list[Row]] = defaultdict(list)
    for row in grants:
        by_job[row.get("job")].append(row)
    for rows in by_job.values():
        yield from _repeated(rows)
        yield from _backwards(rows)


def _repeated(rows: list[Row]) -> Iterator[Row]:
    by_token: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_token[row["token"]].append(row)
    for token, several in by_token.items():
        if len(several) > 1:
            last = max(several, key=lambda row: (row["granted"], row["run"], row["attempt"]))
            who = ", ".join(sorted(f"{row['run']}/{row['attempt']}" for row in several))
            detail = f"token {token} was granted to {who}"
            yield _finding("token_repeated", "violation", last, last["granted"], detail)


def _backwards(rows: list[Row]) -> Iterator[Row]:
    """A token below one of an earlier attempt of its run, or else below one of its job that was granted long before, by
    clocks that agree with the ledger's, or else by any.
    """
    by_run: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_run[row["run"]].append(row)
    before_in_time, before_in_job = _Peaks(filter(_is_in_time, rows)), _Peaks(rows)
    for row in rows:
        before = [
            (other["token"], other["run"], other["attempt"])
            for other in by_run[row["run"]]
            if other["attempt"] < row["attempt"]
        ]
        for above, severity, by in (
            (max(before, default=None), "violation", ""),
            (before_in_time.of(row) if _is_in_time(row) else None, "violation", ""),
            (before_in_job.of(row), "notice", ", by clocks of which one is more than 5 s off the ledger's"),
        ):
            if above is not None and above[0] > row["token"]:
                detail = f"token {row['token']} after {above[0]} of {above[1]}/{above[2]}{by}"
                yield _finding("token_backwards", severity, row, row["granted"], detail)
                break


class _Peaks:
    """The highest token of a job by each instant, with its run and attempt."""

    def __init__(self, rows: Iterable[Row]) -> None:
        timed = sorted(rows, key=_micros)
        self._times = [_micros(row) for row in timed]
        self._peaks: list[tuple[int, str, int]] = []
        for row in timed:
            this = (row["token"], row["run"], row["attempt"])
            self._peaks.append(max(this, self._peaks[-1]) if self._peaks else this)

    def of(self, row: Row) -> tuple[int, str, int] | None:
        index = bisect_right(self._times, _micros(row) - int(GRANT_ORDER_S * 1e6)) - 1
        return self._peaks[index] if index >= 0 else None


def _is_in_time(row: Row) -> bool:
    """A token is the ledger's time: the node's clock agrees with it."""
    return bool(abs(_micros(row) - row["token"]) <= GRANT_ORDER_S * 1e6)


def _micros(row: Row) -> int:
    return int(row["granted"] * 1_000_000)
