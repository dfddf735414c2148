"""One way to claim a key for each store, as a program in Python would do it. Blocking, one connection each.

``claim`` returns True if the key was granted to this client. ``renew`` extends the lease of a granted key; ``prepare``
is what has to be there before a claim and does not count as a part of it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from coordd.core.context import Settings
from coordd.core.ledger.requests import Claim, ListOpen
from coordd.core.ledger.rows import host_of
from coordd.core.ledger.runner_requests import Grant, Registration, Renew, Restore
from coordd.core.ledger.words import GRANTED, HELD, AttemptNumber, Policy
from coordd.core.runs.lease_watch import LeaseWatch, watched_on
from coordd.ports import Ledger

R = TypeVar("R")

FIRST = AttemptNumber(0)
POLICY = Policy(overlap="allow")  # claims of other keys do not count
PATIENCE_S = 10.0
SILENT_S = 86_400.0


class Client(Protocol):
    """A connection to one store."""

    def prepare(self, keys: Sequence[str]) -> None: ...
    def claim(self, key: str) -> bool: ...
    def renew(self, key: str) -> None: ...
    def close(self) -> None: ...


class Ours:
    """A ledger of coordd, asked as a node asks it: a row, its attempt, its indexes, a token, a watch."""

    def __init__(self, ledger: Ledger, name: str, lease_s: float) -> None:
        self.ledger = ledger
        self.name = name
        self.lease_s = lease_s
        self.grants: dict[str, Grant] = {}
        self._watches: dict[str, LeaseWatch] = {}
        self._settings = Settings()
        self._nonce = uuid.uuid4().hex[:16]

    def prepare(self, keys: Sequence[str]) -> None:
        pass

    def join(self) -> None:
        """Sweep once, as a node of this name (HOST.PID) that may be silent for long. A ledger with members grants a new
        one nothing for NEWCOMER_S.
        """
        self.ledger.ask(ListOpen(host=host_of(self.name), silence_s=SILENT_S))

    def claim(self, key: str) -> bool:
        of = registration(key)
        watch = self._watches.get(key)
        answer = self.ledger.ask(
            Claim(
                of=of,
                attempt=FIRST,
                nonce=self._nonce,
                node=self.name,
                lease_s=self.lease_s,
                watched=watch.watched(_boottime()) if watch else None,
            )
        )
        if answer.word == HELD:
            held = answer.held
            self._watches[key] = watched_on(watch, held.token, held.beat, self.lease_s, self._settings, _boottime())
        if answer.word != GRANTED:
            return False
        self.grants[key] = Grant(run=of.run, attempt=answer.attempt, token=answer.token, nonce=self._nonce)
        return True

    def renew(self, key: str) -> None:
        self.ledger.ask(Renew(grant=self.grants[key], lease_s=self.lease_s, launched=False))

    def testify(self, key: str, grant: Grant) -> bool:
        """As a node that heard of a grant: restore it. Returns True if the ledger took it."""
        answer = self.ledger.ask(
            Restore(of=registration(key), grant=grant, node=self.name, lease_s=self.lease_s, state="started")
        )
        return answer.word == "ok"

    def close(self) -> None:
        self.ledger.close()


def registration(key: str) -> Registration:
    """A triggered run with the id of the key."""
    return Registration(f"bench#{key}", "bench", "bench", POLICY, time.time(), scheduled=False)


def ours_redis(address: str, name: str, lease_s: float) -> Ours:
    """``address``: the URL, a blank, the name of the cluster. The quarantine is as long as a daemon makes it."""
    from coordd.adapters.ledger.redis_ledger import RedisLedger

    url, cluster = address.split()
    ledger = RedisLedger(
        url, PATIENCE_S, cluster=cluster, fresh=True, quarantine_s=lease_s + 10.0, short_quarantine_s=0.1
    )
    return Ours(ledger, name, lease_s)


def ours_sqlite(address: str, name: str, lease_s: float) -> Ours:
    """``address``: the path of the file."""
    from coordd.adapters.ledger.sqlite_ledger import SqliteLedger

    return Ours(SqliteLedger(address, PATIENCE_S), name, lease_s)


class Etcd:
    """etcd's JSON gateway over HTTP: a transaction puts the key under this client's lease if it does not exist."""

    def __init__(self, address: str, name: str, lease_s: float) -> None:
        self._http = http.client.HTTPConnection(address, timeout=PATIENCE_S)
        self._name = _b64(name)
        self._lease = self._post("lease/grant", {"TTL": round(lease_s)})["ID"]

    def prepare(self, keys: Sequence[str]) -> None:
        pass

    def claim(self, key: str) -> bool:
        where = _b64(key)
        absent = {"key": where, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        put = {"request_put": {"key": where, "value": self._name, "lease": self._lease}}
        return bool(self._post("kv/txn", {"compare": [absent], "success": [put]}).get("succeeded"))

    def renew(self, key: str) -> None:
        self._post("lease/keepalive", {"ID": self._lease})

    def close(self) -> None:
        self._http.close()

    def _post(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        self._http.request("POST", f"/v3/{method}", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(self._http.getresponse().read())
        if "error" in answer:
            raise ConnectionError(f"etcd: {method}: {answer['error']}")
        return dict(answer)


class Zookeeper:
    """An ephemeral node for each key; the session's timeout is the lease, and the client keeps it alive by itself."""

    def __init__(self, address: str, name: str, lease_s: float) -> None:
        from kazoo.client import KazooClient
        from kazoo.exceptions import NodeExistsError

        self._exists = NodeExistsError
        self._client = KazooClient(hosts=address, timeout=lease_s)
        self._name = name.encode()
        try:
            self._client.start(PATIENCE_S)
            self._client.ensure_path("/claims")
        except BaseException:
            self.close()
            raise

    def prepare(self, keys: Sequence[str]) -> None:
        pass

    def claim(self, key: str) -> bool:
        try:
            self._client.create(f"/claims/{key}", self._name, ephemeral=True)
        except self._exists:
            return False
        return True

    def renew(self, key: str) -> None:
        pass

    def close(self) -> None:
        self._client.stop()
        self._client.close()


class Advisory:
    """PostgreSQL's session lock. Nothing is written; it ends with the connection, or with the server."""

    def __init__(self, address: str, name: str, lease_s: float) -> None:
        import psycopg

        self._db = psycopg.connect(address, autocommit=True)

    def prepare(self, keys: Sequence[str]) -> None:
        pass

    def claim(self, key: str) -> bool:
        found = self._db.execute("SELECT pg_try_advisory_lock(%s)", (int(key[:15], 16),), prepare=True).fetchone()
        return bool(found and found[0])

    def renew(self, key: str) -> None:
        self._db.execute("SELECT 1")

    def close(self) -> None:
        self._db.close()


class SkipLocked:
    """A table in PostgreSQL as queues have it: the rows exist before, a claim writes holder and end of the lease."""

    TABLE = "CREATE TABLE IF NOT EXISTS claims (key text PRIMARY KEY, holder text, until timestamptz)"
    TAKE = """
UPDATE claims SET holder = %(name)s, until = clock_timestamp() + %(lease)s * interval '1 second' WHERE key = (
    SELECT key FROM claims WHERE key = %(key)s AND (until IS NULL OR until < clock_timestamp()) FOR UPDATE SKIP LOCKED
) RETURNING key"""
    KEEP = """
UPDATE claims SET until = clock_timestamp() + %(lease)s * interval '1 second'
WHERE key = %(key)s AND holder = %(name)s"""

    def __init__(self, address: str, name: str, lease_s: float) -> None:
        import psycopg

        self._db = psycopg.connect(address, autocommit=True)
        self._said = {"name": name, "lease": lease_s}

    def prepare(self, keys: Sequence[str]) -> None:
        self._db.execute(self.TABLE)
        self._db.execute("INSERT INTO claims (key) SELECT unnest(%s::text[])", (list(keys),))

    def claim(self, key: str) -> bool:
        return self._db.execute(self.TAKE, {**self._said, "key": key}, prepare=True).fetchone() is not None

    def renew(self, key: str) -> None:
        self._db.execute(self.KEEP, {**self._said, "key": key}, prepare=True)

    def close(self) -> None:
        self._db.close()


class Nats:
    """A key-value bucket of JetStream, kept in files; its maximum age is the lease, so each lease has a bucket."""

    def __init__(self, address: str, name: str, lease_s: float) -> None:
        import nats
        from nats.js.api import KeyValueConfig, StorageType
        from nats.js.errors import KeyWrongLastSequenceError

        self._taken = KeyWrongLastSequenceError
        self._name = name.encode()
        self._loop = asyncio.new_event_loop()
        self._nats = self._done(nats.connect(address, connect_timeout=5, allow_reconnect=False))
        config = KeyValueConfig(f"claims{round(lease_s)}", ttl=lease_s, storage=StorageType.FILE)
        self._bucket = self._done(self._nats.jetstream().create_key_value(config))

    def prepare(self, keys: Sequence[str]) -> None:
        pass

    def claim(self, key: str) -> bool:
        try:
            self._done(self._bucket.create(key, self._name))
        except self._taken:
            return False
        return True

    def renew(self, key: str) -> None:
        self._done(self._bucket.put(key, self._name))

    def close(self) -> None:
        with contextlib.suppress(Exception):  # the server may be gone
            self._done(self._nats.close())
        self._loop.close()

    def _done(self, what: Coroutine[Any, Any, R]) -> R:
        return self._loop.run_until_complete(what)


class PlainLock:
    """SET key name NX PX, as many programs do; renewed by a script that compares the name."""

    KEEP = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2])"

    def __init__(self, address: str, name: str, lease_s: float) -> None:
        import redis

        self._redis = redis.Redis.from_url(address, socket_timeout=PATIENCE_S)
        self._name = name
        self._lease_ms = round(lease_s * 1000)
        self._redis.ping()

    def prepare(self, keys: Sequence[str]) -> None:
        pass

    def claim(self, key: str) -> bool:
        return bool(self._redis.set(key, self._name, nx=True, px=self._lease_ms))

    def renew(self, key: str) -> None:
        self._redis.eval(self.KEEP, 1, key, self._name, str(self._lease_ms))

    def close(self) -> None:
        self._redis.close()


CLIENTS: dict[str, Callable[[str, str, float], Client]] = {
    "ours_redis": ours_redis,
    "ours_sqlite": ours_sqlite,
    "etcd": Etcd,
    "zookeeper": Zookeeper,
    "advisory": Advisory,
    "skip_locked": SkipLocked,
    "nats": Nats,
    "plain_lock": PlainLock,
}


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
