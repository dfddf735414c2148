"""Reads ``loud`` of a breaker, of a job or of a connection: when a trip is logged as an error."""

from __future__ import annotations

from coordd.config import values
from coordd.core.breaker import LOUD_AFTER_MAX, Loud

# Trips of a week ago have nothing to do with those of now.
LOUD_MIN_S, LOUD_MAX_S = 1.0, 7 * 86_400.0


def read_loud(value: object) -> Loud:
    """What the table says. Raises ValueError."""
    if not isinstance(value, dict):
        expected = 'a table such as { after = 3, within = "5m", for = "30m" }'
        raise ValueError(f"expected {expected}, found {values.found(value)}")  # noqa: TRY004 - as all readers
    wrong: list[str] = []
    said = values.read_table(value, _READERS, lambda key, message: wrong.append(f"{key}: {message}"))
    if wrong:
        raise ValueError("; ".join(wrong))
    usual = Loud()
    return Loud(said.get("after", usual.after), said.get("within", usual.within_s), said.get("for", usual.for_s))


_READERS: dict[str, values.Reader] = {
    "after": values.whole(1, LOUD_AFTER_MAX),
    "within": values.seconds(LOUD_MIN_S, LOUD_MAX_S),
    "for": values.seconds(LOUD_MIN_S, LOUD_MAX_S),
}
