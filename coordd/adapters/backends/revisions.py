"""The published revisions of the job definitions, in Redis, through redis-py.

Under ``{coordd:CLUSTER}:config:`` there are the counter ``number``, the sorted set ``revisions`` of the numbers that
are complete, a hash ``revision:N`` for each, and a hash ``votes:N`` with what each member says about it. A revision
never changes once it is written. The oldest are removed when there are more than REVISIONS_MAX.

redis-py blocks: each function is called in a thread, and raises UnavailableError when Redis does not answer in time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, ReadOnlyError, RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from coordd.adapters.ledger.resp import Address
from coordd.core.redaction import redact_text
from coordd.errors import CoorddError, UnavailableError
from coordd.ports import Published, Seal, Vote

REVISIONS_MAX = 50

# All texts of one revision, in bytes. The control socket accepts less.
BYTES_MAX = 32 * 2**20

# Votes of a revision are forgotten after this (seconds): members vote again as long as it is the newest.
VOTES_KEPT_S = 3600

# Numbers of revisions are below this: Lua and JSON have no larger exact ones.
NUMBER_END = 2**53

# The largest number in a field: the end of the year 9999, in Unix seconds.
FIGURE_MAX = 253_402_300_799

# Characters of a member's problem with a revision.
WORDS_MAX = 1000

# How often a number that somebody else took meanwhile is tried again.
TRIES_MAX = 20


class Revisions:
    """The revisions of one cluster."""

    def __init__(
        self,
        url: str,
        cluster: str,
        *,
        password: Callable[[], str],
        timeout_s: float,
        tls: dict[str, Any] | None = None,
    ) -> None:
        """``url``: of one server or of sentinels, as the ledger's. ``password`` is called at each connection; it counts
        if the URL has none. ``tls``: redis-py's parameters, also for the sentinels; None: the system's authorities.

        Raises ConfigError when the URL is invalid.
        """
        self.url = redact_text(url)
        self._prefix = f"{{coordd:{cluster}}}:config:"
        self._address, self._password = Address(url), password
        self._reach: dict[str, Any] = {
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "retry": Retry(NoBackoff(), 0),
            **({"ssl": True} if self._address.tls else {}),
            **(tls or {}),
        }
        self._client: Any = None

    def newest(self) -> int:
        """The highest number; 0 without a revision."""
        with self._asked() as client:
            found = client.zrevrange(self._prefix + "revisions", 0, 0)
            return _number(found[0]) if found else 0

    def listed(self) -> list[Published]:
        """All of them without their texts, newest first."""
        with self._asked() as client:
            numbers = client.zrevrange(self._prefix + "revisions", 0, REVISIONS_MAX - 1)
            fields = [*_FIELDS]
            rows = [(_number(one), client.hmget(self._key(_number(one)), fields)) for one in numbers]
        return [_published(number, dict(zip(fields, row, strict=True))) for number, row in rows]

    def read(self, number: int) -> Published:
        """One revision with its texts. Raises UnavailableError too if it is not there, or is not one of ours."""
        key = self._key(number)
        with self._asked() as client:
            size = client.hstrlen(key, "texts")
            if not size or size > BYTES_MAX:
                found = f"{size} bytes, more than {BYTES_MAX}" if size else "nothing"
                raise UnavailableError(
                    f"revision {number} is not in {self.url}: found {found} at {key}; publish it again"
                )
            row = client.hgetall(key)
        try:
            return _published(number, row)._replace(texts=json.loads(row["texts"]))
        except (ValueError, KeyError, RecursionError) as exc:
            raise UnavailableError(
                f"revision {number} in {self.url} is damaged ({exc!r:.80}); publish it again"
            ) from exc

    def publish(
        self, texts: dict[str, str], digest: str, seal: Seal, *, above: int, by: str, uid: int, note: str
    ) -> Published:
        """Write a revision under a new number, higher than ``above``."""
        said = json.dumps(texts)
        if len(said) > BYTES_MAX:
            raise UnavailableError(f"expected at most {BYTES_MAX} bytes of job files, found {len(said)}")
        with self._asked() as client:
            for _ in range(TRIES_MAX):
                number = client.incr(self._prefix + "number")
                if number <= above:  # Redis was emptied since
                    client.set(self._prefix + "number", above)
                    continue
                if client.hsetnx(self._key(number), "digest", digest):
                    break
            else:
                raise UnavailableError(f"no free number for a revision in {self.url}: other callers took {TRIES_MAX}")
            key, mac = seal(number, digest)
            seconds, micros = client.time()
            row = {
                "digest": digest, "by": by, "uid": uid, "at": seconds + micros / 1e6, "note": note, "jobs": len(texts),
                "key": key, "mac": mac, "texts": said,
            }  # fmt: skip
            client.hset(self._key(number), mapping=row)
            client.zadd(self._prefix + "revisions", {str(number): number})  # complete: others may read it
            for old in client.zrevrange(self._prefix + "revisions", REVISIONS_MAX, -1):
                if int(old) < above:  # never the one in force
                    client.zrem(self._prefix + "revisions", old)
                    client.delete(self._key(int(old)), self._votes(int(old)))
        return _published(number, row)

    def vote(self, number: int, member: str, said: Vote) -> None:
        """Say what this member thinks of a revision."""
        with self._asked() as client:
            client.hset(self._votes(number), member, json.dumps(said))
            client.expire(self._votes(number), VOTES_KEPT_S)

    def votes(self, number: int) -> dict[str, Vote]:
        """What members have said, by their full hostname. A damaged vote is left out."""
        with self._asked() as client:
            rows = client.hgetall(self._votes(number))
        found = {}
        for member, text in rows.items():
            try:
                problem, jobs = json.loads(text)
                found[member] = Vote(_plain(problem), _plain(jobs))
            except (ValueError, TypeError, RecursionError):
                continue
        return found

    def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _key(self, number: int) -> str:
        return f"{self._prefix}revision:{number}"

    def _votes(self, number: int) -> str:
        return f"{self._prefix}votes:{number}"

    @contextmanager
    def _asked(self) -> Iterator[Any]:
        """The client. An error closes its connections, so the next call reads the password again."""
        try:
            if self._client is None:
                self._client = self._connected()
            yield self._client
        except CoorddError:
            raise
        except (RedisError, OSError, ValueError) as exc:
            self.close()
            why = redact_text(str(exc))
            if isinstance(exc, ReadOnlyError):
                why = "it is a replica: name the primary, or its sentinels with redis+sentinel://"
            elif isinstance(exc, MasterNotFoundError):
                why = f"no sentinel names a primary that is up: {why}"
            elif isinstance(exc, NoPermissionError):
                why += "; the user needs the rights of deploy/acl/redis.rules (docs/operate.md: least privilege)"
            moved = isinstance(exc, ResponseError) and str(exc).startswith(("MOVED", "ASK"))
            if moved:
                why = "it is a part of a Redis Cluster, which this backend does not support: name a single server"
            raise UnavailableError(f"the revisions at {self.url}: {why or type(exc).__name__}") from exc

    def _connected(self) -> Any:
        """A client of the present primary. It connects with its first command, and asks the sentinels each time."""
        address = self._address
        login: dict[str, Any] = {
            "username": address.user or None,
            "password": address.password or self._password() or None,
            "db": address.database,
            "decode_responses": True,
        }
        if address.master:
            asked: Any = Sentinel(address.hosts, sentinel_kwargs=self._reach, **self._reach)  # type: ignore[no-untyped-call]  # redis-py
            return asked.master_for(address.master, **login)
        host, port = address.hosts[0]
        return Redis(host=host, port=port, **login, **self._reach)


def _number(text: str) -> int:
    """A number in the set of revisions. Raises ValueError."""
    number = int(text)
    if not 0 < number < NUMBER_END:
        raise ValueError(f"{text} is not the number of a revision")
    return number


def _plain(said: object) -> str:
    """A member's words without what a log or a socket cannot take."""
    return str(said)[:WORDS_MAX].encode(errors="replace").decode()


_FIELDS = ("digest", "by", "uid", "at", "note", "jobs", "key", "mac")


def _published(number: int, row: dict[str, Any]) -> Published:
    """A revision without its texts. A field that is missing or damaged is empty."""

    def figure(name: str) -> float:
        try:
            found = float(row.get(name) or 0)
        except ValueError:
            return 0.0
        return found if 0 <= found <= FIGURE_MAX else 0.0  # neither infinite nor "not a number"

    words = {name: str(row.get(name) or "") for name in ("digest", "by", "note", "key", "mac")}
    return Published(number=number, uid=int(figure("uid")), at=figure("at"), jobs=int(figure("jobs")), **words)
