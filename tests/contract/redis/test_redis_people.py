"""The Redis ledger's operations for people, beside a server that answers no question with too much."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from coordd.adapters.ledger import redis_people
from coordd.adapters.ledger.redis_people import _weaker, export
from coordd.core.ledger.rows import RUN_COLUMNS, Row
from coordd.errors import UnavailableError

LENGTH_MAX = 50

# The command of one page: ZRANGEBYSCORE KEY FROM +inf WITHSCORES LIMIT OFFSET COUNT.
Question = Sequence[Any]


class Server:
    """The list of all runs, on a server that has no time for a long answer. ``moved`` is called after each page."""

    url, cluster, prefix = "redis://fake", "c", "{c}:"

    def __init__(self, runs: dict[bytes, float], moved: Callable[[dict[bytes, float]], None] = lambda _: None) -> None:
        self.scores = runs
        self._moved = moved

    def key(self, name: str) -> str:
        return self.prefix + name

    def read(self, commands: Sequence[Question], **_: object) -> list[Any]:
        return [self._answer(*command) for command in commands]

    def rows(self, names: Sequence[bytes]) -> Iterator[Row]:
        for name in names:
            if name in self.scores:
                yield Row([name.decode() if column == "run" else "" for column in RUN_COLUMNS])

    def _answer(self, word: str, key: Any, *arguments: Any) -> Any:
        if word == "HMGET":
            return [None] * len(arguments)
        if word in ("SMEMBERS", "HGETALL"):
            return []
        assert key == self.key("list::")
        ordered = sorted(self.scores.items(), key=lambda item: (item[1], item[0]))
        if word == "ZRANGE":
            first, last = arguments
            some = ordered[first : last + 1 or None]
        else:
            assert word == "ZRANGEBYSCORE"
            least, _, _, _, offset, count = arguments
            some = [item for item in ordered if item[1] >= float(least)][offset : offset + count]
        if len(some) > LENGTH_MAX:
            raise UnavailableError("no answer in time")
        self._moved(self.scores)
        return [part for name, score in some for part in (name, repr(score).encode())]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_people, "IDS_A_TIME", 40)


def exported(server: Any) -> list[str]:
    return [fields["run"] for fields in export(server) if fields["kind"] == "run"]


@pytest.mark.parametrize("count", [0, 1, 39, 40, 41, 80, 500])
@pytest.mark.parametrize("together", [1, 7, 120])
def test_every_run_is_exported_once_and_oldest_first(count: int, together: int) -> None:
    """``together`` runs have the same time."""
    runs = {b"r#%04d" % number: float(number // together) for number in range(count)}
    assert exported(Server(runs)) == sorted(name.decode() for name in runs)


@pytest.mark.parametrize("together", [1, 7])
def test_what_is_there_all_the_time_is_exported_while_runs_come_and_go(together: int) -> None:
    runs = {b"r#%04d" % number: float(number // together) for number in range(500)}
    gone = sorted(runs)[::3]
    stays = sorted(set(runs) - set(gone))

    def move(scores: dict[bytes, float]) -> None:
        for name in gone[:20]:
            gone.remove(name)
            del scores[name]
        scores[b"s#%04d" % len(scores)] = 1e6

    said = exported(Server(runs, move))
    assert len(said) == len(set(said))
    assert set(said) >= {name.decode() for name in stays}


@pytest.mark.parametrize(
    ("facts", "settings", "said"),
    [
        ({"aof_enabled": "0"}, {"save": None}, "it does not tell whether snapshots are written"),
        ({"aof_enabled": "0"}, {"save": ""}, "nothing is written to disk"),
        ({"aof_enabled": "0"}, {"save": "60 1"}, "only snapshots"),
        ({"repl_backlog_active": "1", "connected_slaves": "0"}, {"ttl": "3600"}, "repl-backlog-ttl"),
        ({"repl_backlog_active": "1", "connected_slaves": "0"}, {"ttl": None}, "repl-backlog-ttl"),
        ({"repl_backlog_active": "1", "connected_slaves": "0"}, {"ttl": "0"}, ""),
        ({"repl_backlog_active": "0", "connected_slaves": "0"}, {"ttl": "3600"}, ""),
    ],
)
def test_what_is_weaker_is_said_and_nothing_that_is_not_known(
    facts: dict[str, str], settings: dict[str, str | None], said: str
) -> None:
    fine = {"aof_enabled": "1", "connected_slaves": "1", "min_slaves_good_slaves": "1", "master_replid": "a" * 40}
    kept: dict[str, str | None] = {
        "save": "60 1",
        "appendfsync": "always",
        "repl-backlog-ttl": settings.pop("ttl", "0"),
    }
    found = _weaker({**fine, **facts}, {**kept, **settings})
    if said:
        assert any(said in sentence for sentence in found)
    else:
        assert found == ["no replica is connected: nobody takes over when this server dies"]
