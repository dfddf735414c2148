"""A stream of Redis as a queue: one consumer group for each trigger, and one consumer in it for all nodes.

The group remembers which entries are not acknowledged, so a node that polls after another one finds them again. Entries
that can start nothing move to the stream `NAME:dead`, which holds the last ones of them. Both happen in scripts: an
entry that is too large never leaves the server, and an entry is put aside once.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import trio
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, ReadOnlyError, RedisError, ResponseError
from redis.retry import Retry

from coordd.adapters.bus.where import of_redis
from coordd.core.redaction import redact_text
from coordd.core.triggers.bodies import BODY_BYTES_MAX, FIELDS_MAX
from coordd.core.triggers.messages import Batch, Dead, Message
from coordd.errors import CoorddError, RefusedError, UnavailableError

T = TypeVar("T")

# How long (seconds) Redis may take for one answer.
TIMEOUT_S = 5.0

# Entries that are kept aside, and how many of them are shown.
DEAD_MAX = 1000
SHOWN_MAX = 20

CONSUMER = "coordd"

# The id of an entry.
PLACE = re.compile(r"[0-9]{1,20}-[0-9]{1,20}", re.ASCII)

# Takes: group, consumer, entries, bytes and fields of one entry, dead ones to show. Returns: entries of the group that
# are not acknowledged, dead ones, the last of them (place, id, reason; others may have put it there: then both are
# ""), and the entries (id, bytes, fields). An entry that is too large, or that was trimmed, has no fields; the bytes of
# the latter are -1. No list has a nil: Redis cuts a list at the first one.
READ = """
local group, most, found, behind = ARGV[1], tonumber(ARGV[3]), {}, -1
for _, one in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local said = {}
  for at = 1, #one, 2 do said[one[at]] = one[at + 1] end
  if said['name'] == group then
    local lag = said['lag']
    if not lag then
      lag = #redis.call('XRANGE', KEYS[1], '(' .. said['last-delivered-id'], '+', 'COUNT', 100)
    end
    behind = said['pending'] + lag
  end
end
if behind < 0 then return redis.error_reply('NOGROUP') end
local function read(from, count)
  if count < 1 then return end
  local reply = redis.call('XREADGROUP', 'GROUP', group, ARGV[2], 'COUNT', count, 'STREAMS', KEYS[1], from)
  if not reply then return end
  for _, entry in ipairs(reply[1][2]) do
    local fields, size = entry[2], -1
    if fields then
      size = 0
      for _, text in ipairs(fields) do size = size + #text end
    end
    if not fields or size > tonumber(ARGV[4]) or #fields > 2 * tonumber(ARGV[5]) then fields = false end
    found[#found + 1] = {entry[1], size, fields}
  end
end
read('0', most)
read('>', most - #found)
local dead = {}
for _, entry in ipairs(redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', ARGV[6])) do
  local said = entry[2]
  local ours = said[1] == 'coordd-id'
  local ident, reason = ours and said[2] or '', ours and said[4] or ''
  dead[#dead + 1] = {entry[1], string.sub(ident, 1, 400), string.sub(reason, 1, 1200)}
end
return {behind, redis.call('XLEN', KEYS[2]), dead, found}
"""

# Takes: group, id, reason, bytes and fields of one entry, how many are kept. The copy comes before the acknowledgement:
# Redis undoes nothing of a script that fails (the memory is full, a key of another kind). XPENDING would tell first
# whether it was acknowledged before, but users that sites have made for earlier versions have no right to it.
PUT_ASIDE = """
local said, size = {'coordd-id', ARGV[2], 'coordd-reason', ARGV[3]}, 0
local entry = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])[1]
local fields = entry and entry[2] or {}
for _, text in ipairs(fields) do size = size + #text end
if size <= tonumber(ARGV[4]) and #fields <= 2 * tonumber(ARGV[5]) then
  for _, text in ipairs(fields) do said[#said + 1] = text end
end
local kept = redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[6], '*', unpack(said))
local taken = redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
if taken == 0 then redis.call('XDEL', KEYS[2], kept) end
return taken
"""


# Takes: id in the stream of dead ones, "1" to add it to the stream again. Returns: 0 if it is not there, 1, or 2 if it
# was put aside without its fields, which are gone: it stays. What others have put there has no fields of ours in front.
TAKE_BACK = """
local entry = redis.call('XRANGE', KEYS[2], ARGV[1], ARGV[1])[1]
if not entry then return 0 end
if ARGV[2] == '1' then
  local fields, from = {}, 1
  if entry[2][1] == 'coordd-id' then from = 5 end
  for at = from, #entry[2] do fields[#fields + 1] = entry[2][at] end
  if #fields == 0 then return 2 end
  redis.call('XADD', KEYS[1], '*', unpack(fields))
end
redis.call('XDEL', KEYS[2], ARGV[1])
return 1
"""


class RedisStream:
    """ports.MessageQueue. redis-py blocks: each call has a thread, one at a time."""

    def __init__(
        self, url: str, stream: str, group: str, *, password: Callable[[], str], tls: Callable[[], dict[str, Any]]
    ) -> None:
        """``password``, ``tls``: redis-py's parameters; called at each connection. Both may raise UnavailableError or
        ConfigError.
        """
        self._where = of_redis(url)
        self._keys = (stream, f"{stream}:dead")
        self._group = group
        self._password = password
        self._tls = tls
        self._client: Any = None
        self._thread = trio.CapacityLimiter(1)

    async def read(self, most: int) -> Batch:
        """Those that are not acknowledged first, then new ones."""
        return await self._call(lambda client: self._read(client, most))

    async def acknowledge(self, places: Sequence[str]) -> None:
        """One command for all of them."""
        if places:
            await self._call(lambda client: client.xack(self._keys[0], self._group, *places))

    async def put_aside(self, dead: Sequence[tuple[str, str]]) -> None:
        """One script for each."""
        for place, reason in dead:
            said = (self._group, place, reason, BODY_BYTES_MAX, FIELDS_MAX, DEAD_MAX)
            await self._call(partial(_asked_for, PUT_ASIDE, self._keys, said))

    async def take_back(self, dead: str, *, again: bool) -> bool:
        """One script. An entry that is added again has a new id."""
        if not PLACE.fullmatch(dead):
            return False
        done = await self._call(partial(_asked_for, TAKE_BACK, self._keys, (dead, "1" if again else "")))
        if done == 2:
            raise RefusedError(
                f"{self._keys[1]} has only the id of {dead}: its fields were too large, or trimmed",
                kind="not_available",
                hint="add the entry again by XADD, and discard this one",
            )
        return bool(done)

    async def close(self) -> None:
        """The group remembers the entries without an acknowledgement."""
        self._drop()

    async def _call(self, call: Callable[[Any], T]) -> T:
        return await trio.to_thread.run_sync(self._asked, call, limiter=self._thread, abandon_on_cancel=True)

    # ---- in a thread

    def _asked(self, call: Callable[[Any], T]) -> T:
        try:
            if self._client is None:
                self._client = self._connected()
            return call(self._client)
        except CoorddError:
            raise
        except Exception as exc:  # of the library, of the system, or of an answer that is not as expected
            self._drop()  # the next call reads the password again
            raise UnavailableError(f"{self._where.shown}: {_why(exc)}") from exc

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):  # perhaps a thread that was left behind still uses it
                client.close()

    def _connected(self) -> Any:
        where = self._where
        return Redis(
            host=where.host,
            port=where.port,
            db=int(where.space),
            username=where.user or None,
            password=self._password() or None,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            **self._tls(),
        )

    def _read(self, client: Any, most: int) -> Batch:
        asked = (self._group, CONSUMER, most, BODY_BYTES_MAX, FIELDS_MAX, SHOWN_MAX)
        try:
            said = _asked_for(READ, self._keys, asked, client)
        except ResponseError as exc:
            if "no such key" not in str(exc) and "NOGROUP" not in str(exc):
                raise
            self._begin(client)
            said = _asked_for(READ, self._keys, asked, client)
        behind, dead, last, found = said
        return Batch([_message(*entry) for entry in found], behind, dead, tuple([_dead(*one) for one in last]))

    def _begin(self, client: Any) -> None:
        """The group begins with the entries that are there."""
        try:
            client.xgroup_create(self._keys[0], self._group, id="0", mkstream=True)
        except ResponseError as exc:
            if "BUSYGROUP" not in str(exc):
                raise


def _asked_for(script: str, keys: tuple[str, str], said: tuple[str | int, ...], client: Any) -> Any:
    return client.eval(script, len(keys), *keys, *said)


def _message(place: bytes, size: int, fields: list[bytes] | None) -> Message:
    ident = place.decode(errors="replace")
    if fields is None:
        why = "it was trimmed from the stream before it was taken"
        if size >= 0:
            why = f"expected at most {BODY_BYTES_MAX} bytes in {FIELDS_MAX} fields, found more ({size} bytes)"
        return Message(ident, ident, problem=why)
    try:
        texts = [text.decode() for text in fields]
    except UnicodeDecodeError:
        return Message(ident, ident, problem="expected fields in UTF-8")
    body = hashlib.sha256(b"".join(b"%d:%b" % (len(text), text) for text in fields)).hexdigest()
    return Message(ident, ident, body, dict(zip(texts[::2], texts[1::2], strict=True)))


def _dead(place: bytes, ident: bytes, reason: bytes) -> Dead:
    """``place``: its id in the stream of dead ones, which begins with the milliseconds since 1970."""
    at = place.partition(b"-")[0]
    said = reason or (b"" if ident else b"it was put there by others")
    return Dead(
        int(at) / 1000 if at.isdigit() else time.time(),
        ident.decode(errors="replace")[:100],
        redact_text(said.decode(errors="replace")[:300]),
        place.decode(errors="replace"),
    )


def _why(exc: Exception) -> str:
    why = redact_text(str(exc)) or type(exc).__name__
    if not isinstance(exc, (RedisError, OSError, ValueError)):
        return f"{type(exc).__name__}: {why}"
    if isinstance(exc, ReadOnlyError):
        return "it is a replica: name the primary"
    if isinstance(exc, NoPermissionError):
        return f"{why}; the user needs the commands of docs/jobs/triggers.md"
    if isinstance(exc, ResponseError) and why.startswith(("MOVED", "ASK", "CROSSSLOT")):
        return "it is a part of a Redis Cluster, which triggers do not support: name a single server"
    return why
