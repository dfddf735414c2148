"""Rows that were found against rows that were expected, a part of them in memory at a time."""

from __future__ import annotations

import pickle
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import dataset

from history.oracle.reference import Row

# Mismatches of a table that are kept with their words, and the length of a value in them.
SHOWN_MAX = 20
VALUE_MAX = 200


class Parts:
    """Items on the disk in parts: what has one key is in one part."""

    def __init__(self, directory: Path, count: int) -> None:
        directory.mkdir(parents=True)
        self._paths = [directory / str(number) for number in range(count)]
        self._files = [path.open("wb") for path in self._paths]

    def put(self, key: str | bytes, item: Any) -> None:
        data = key.encode("utf-8", "replace") if isinstance(key, str) else key
        pickle.dump(item, self._files[zlib.crc32(data) % len(self._files)])

    def take(self, number: int) -> Iterator[Any]:
        """The items of a part, once: it is gone then."""
        self._files[number].close()
        with self._paths[number].open("rb") as file:
            try:
                while True:
                    yield pickle.load(file)  # noqa: S301 - of our own directory
            except EOFError:
                pass
        self._paths[number].unlink()


class Tally:
    """What came of the comparison of a table, or of one against another fold."""

    def __init__(self) -> None:
        self.rows = 0
        self.mismatches = 0
        self.shown: list[str] = []

    def add(self, key: Hashable, what: str) -> None:
        """One more mismatch."""
        self.mismatches += 1
        if len(self.shown) < SHOWN_MAX:
            self.shown.append(f"{key}: {what}")

    def compare(self, expected: Mapping[Any, Row], found: Iterable[Row], key_of: Callable[[Row], Hashable]) -> None:
        """Row by row, field by field."""
        by_key: dict[Hashable, list[Row]] = defaultdict(list)
        for row in found:
            by_key[key_of(row)].append(row)
        for key, row in expected.items():
            self.rows += 1
            there = by_key.pop(key, [])
            if len(there) != 1:
                self.add(key, f"expected one row, found {len(there)}")
                continue
            for field in sorted(row.keys() | there[0].keys()):
                one, other = row.get(field), there[0].get(field)
                if one != other:
                    self.add(key, f"{field}: expected {_short(one)}, found {_short(other)}")
        for key, rows in by_key.items():
            self.add(key, f"expected no row, found {len(rows)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= VALUE_MAX else f"{text[:VALUE_MAX]}… ({len(text)})"


def rows_of(table: Path) -> Iterator[Row]:
    """All rows of a table without their nulls, read without Spark."""
    by_date = dataset.partitioning(pa.schema([("date", pa.string())]), flavor="hive")
    read = dataset.dataset(table, format="parquet", partitioning=by_date)
    maps = [field.name for field in read.schema if pa.types.is_map(field.type)]
    for batch in read.to_batches(batch_size=4096, batch_readahead=1, fragment_readahead=1):
        for row in batch.to_pylist():
            found = {name: value for name, value in row.items() if value is not None}
            found.update({name: dict(found[name]) for name in maps if name in found})
            yield found
