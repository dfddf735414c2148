"""The Redis ledger's operations for people: its status, export and import."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from coordd.adapters.ledger.dump import checked, exported, exported_hold, head, take_head
from coordd.adapters.ledger.redis_rows import attempts_of, value_of
from coordd.adapters.ledger.resp import Problem
from coordd.core.ledger.fires import Decided, as_text, stretches
from coordd.core.ledger.identity import CLOSED, IDENTITY, PREDECESSOR, begin_again
from coordd.core.ledger.limits.text import slots
from coordd.core.ledger.rows import JOB_COLUMNS, STANDING_COLUMNS, Activation, Hold, JobRow, Row
from coordd.core.ledger.words import STATES
from coordd.errors import RefusedError, UnavailableError


class Asked(Protocol):
    """The methods of a RedisLedger that are needed here."""

    @property
    def url(self) -> str: ...

    cluster: str
    prefix: str

    def key(self, name: str) -> str: ...
    def rows(self, names: Sequence[bytes]) -> Iterator[Row]: ...
    def read(
        self, commands: Sequence[Sequence[str | bytes | int]], *, refused: bool = False, limit_s: float = 0.0
    ) -> list[Any]: ...
    def script(self, op: str, arguments: Sequence[bytes]) -> list[str | bytes | int]: ...
    def bring(self, op: str) -> list[str | bytes | int]: ...


# The schema of the keys and their rows, also sent to the scripts; a closed ledger has another one.
SCHEMA = "1"

# Rows per command of an import.
PUT_MAX = 100

# Ids per page of the list of all runs: no answer grows with the ledger.
IDS_A_TIME = 2000

# One transaction for a whole import: 20,000 runs take some seconds, during which Redis serves nobody else.
IMPORT_S = 60.0

# The server's settings that its status judges.
SETTINGS = ("save", "appendfsync", "repl-backlog-ttl")

# The hashes of the holds (lua/shared/jobs.lua).
HOLDS = ("drains", "holds")

_META = ("schema", "epoch", "open_at", "mark", "short", "identity", "predecessor", "closed")


def status(ledger: Asked) -> dict[str, Any]:
    """The status of the ledger and its server; ``weaker`` lists what is less safe than advised, a sentence each."""
    began = time.monotonic()
    commands: list[tuple[str, ...]] = [
        ("PING",),
        ("INFO", "server"),
        ("INFO", "replication"),
        ("INFO", "memory"),
        ("INFO", "persistence"),
        *[("CONFIG", "GET", name) for name in SETTINGS],
        ("TIME",),
        ("HMGET", ledger.key("meta"), *_META),
        ("SCARD", ledger.key("jobs")),
    ]
    first = len(commands)
    commands += [("ZCARD", ledger.key(f"list:{state}:")) for state in STATES]
    (_,) = ledger.read(commands[:1])  # a server that refuses everything says why here
    ping_s = time.monotonic() - began
    replies = ledger.read(commands, refused=True)
    known = [None if isinstance(reply, Problem) else reply for reply in replies]
    settings = {name: said[1].decode() if said else None for name, said in zip(SETTINGS, known[5:8], strict=True)}
    facts = {**_info(known[1]), **_info(known[2]), **_info(known[3]), **_info(known[4])}
    now = int(known[8][0]) + int(known[8][1]) / 1e6 if known[8] else 0.0
    said = (value.decode() if value else "" for value in known[9] or [b""] * len(_META))
    schema, epoch, open_at, mark, short, identity, predecessor, closed = said
    replid = facts.get("master_replid", "")
    counts = {state: int(count or 0) for state, count in zip(STATES, known[first:], strict=True)}
    return {
        "url": ledger.url,
        "cluster": ledger.cluster,
        "schema": int(schema) if schema else None,
        "ping_ms": round(ping_s * 1e3, 3),
        "version": facts.get("redis_version", ""),
        "role": {"slave": "replica"}.get(facts.get("role", ""), facts.get("role", "")),
        "replicas": int(facts.get("connected_slaves", 0)),
        "maxmemory_policy": facts.get("maxmemory_policy", ""),
        "used_memory_bytes": int(facts.get("used_memory", 0)),
        "maxmemory_bytes": int(facts.get("maxmemory", 0)),
        "persistence": {"aof": facts.get("aof_enabled") == "1", "rdb": settings["save"]},
        "identity": identity or None,
        "predecessor": predecessor or None,
        "closed": closed or None,
        "epoch": epoch,
        "epoch_changed": bool(epoch) and bool(replid) and epoch != replid,
        "since": int(mark) / 1e6 if mark else None,
        "recovering_s": max(0.0, float(open_at) - now) if open_at else 0.0,
        "quarantine": "" if not open_at or float(open_at) <= now else "short" if short == "1" else "full",
        "jobs": int(known[10] or 0),
        "runs": {state: count for state, count in counts.items() if count},
        "weaker": _weaker(facts, settings),
    }


def _info(reply: bytes | None) -> dict[str, str]:
    lines = (reply or b"").decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _weaker(facts: dict[str, str], settings: dict[str, str | None]) -> list[str]:
    """``settings``: of SETTINGS; None: the server does not tell."""
    weaker = []
    save = settings["save"]
    policy = facts.get("maxmemory_policy", "")
    if policy and policy != "noeviction":
        weaker.append(
            f"maxmemory-policy is {policy}: a full Redis forgets runs, which are then launched again; set noeviction"
        )
    if facts.get("aof_enabled") != "1":
        if save is None:
            weaker.append(
                "it does not tell whether snapshots are written (CONFIG GET save): without them, a restart forgets "
                "every run; give the user +config|get, or set appendonly yes"
            )
        elif not save:
            weaker.append("nothing is written to disk: a restart forgets every run; set appendonly yes")
        else:
            weaker.append("only snapshots are written to disk: a restart forgets the last minutes; set appendonly yes")
    elif settings["appendfsync"] == "no":
        weaker.append("appendfsync is no: a power cut forgets what was answered; set everysec or always")
    if facts.get("role") == "slave":
        weaker.append("this server is a replica: the ledger needs the master")
    elif facts.get("connected_slaves", "0") == "0":
        weaker.append("no replica is connected: nobody takes over when this server dies")
        if facts.get("repl_backlog_active") == "1" and settings["repl-backlog-ttl"] != "0":
            weaker.append(
                "some time (repl-backlog-ttl, an hour) after its last replica left, the server takes a new replication "
                "id, and a whole quarantine begins; set repl-backlog-ttl 0"
            )
    elif "min_slaves_good_slaves" not in facts:  # only present if it is set
        weaker.append(
            "min-replicas-to-write is 0: a master that is cut off from its replicas goes on granting while another is "
            "promoted; set it to 1, and min-replicas-max-lag to 10"
        )
    if not facts.get("master_replid"):
        weaker.append("the server does not tell its replication id: a ledger that went back is not noticed")
    return weaker


def export(ledger: Asked) -> Iterator[dict[str, Any]]:
    """All rows: jobs, then each run with its attempts. Rows that are written meanwhile may be included or not."""
    identity, _, closed = _identity(ledger)
    if closed:
        yield head(identity, closed)
    (jobs,) = ledger.read([("SMEMBERS", ledger.key("jobs"))])
    for name in sorted(jobs):
        read, standing, past, settled, first_heard, succeeded = ledger.read(
            [
                ("HMGET", ledger.prefix.encode() + b"job:" + name, *JOB_COLUMNS),
                ("HMGET", ledger.prefix.encode() + b"standing:" + name, *STANDING_COLUMNS),
                ("LRANGE", ledger.prefix.encode() + b"activations:" + name, 0, -1),
                ("HGET", ledger.key("fires"), name),
                ("HGET", ledger.key("first-heard"), name),
                ("HGET", ledger.key("succeeded"), name),
            ]
        )
        if read[0] is not None:
            job = JobRow(*[value_of(column, value) for column, value in zip(JOB_COLUMNS, read, strict=True)])
            if standing[0] is not None:  # the real state, where an older version reads a fence
                fence = job.fence
                values = zip(STANDING_COLUMNS, standing, strict=True)
                job = JobRow.of_standing([value_of(column, value) for column, value in values])
                job.fence = fence
            job.past = [_activation(line) for line in past]
            job.fires = as_text(stretches((settled or b"").decode(errors="replace")))
            job.first_heard = float(first_heard or 0.0)
            job.succeeded_at = float(succeeded or 0.0)
            yield exported(job)
    for hashed in ledger.read([("HGETALL", ledger.key(name)) for name in HOLDS]):
        for key, text in sorted(zip(hashed[::2], hashed[1::2], strict=True)):
            yield exported_hold(key.decode(errors="replace"), Hold.read(text.decode(errors="replace")))
    for page in _pages(ledger):
        for row in ledger.rows(page):
            yield exported(row)
            (flat,) = ledger.read([("HGETALL", ledger.key(f"attempts:{row.run}"))])
            yield from map(exported, attempts_of(flat))


def _pages(ledger: Asked) -> Iterator[list[bytes]]:
    """The ids of all runs, oldest first. Each page begins where the last one ended, wherever that stands by now: what
    is there all the time is told once, whatever comes and goes.
    """
    since, last, skipped = b"-inf", b"", 0
    while True:
        limit = ("WITHSCORES", "LIMIT", skipped, IDS_A_TIME)
        (flat,) = ledger.read([("ZRANGEBYSCORE", ledger.key("list::"), since, "+inf", *limit)])
        found = list(zip(flat[::2], flat[1::2], strict=True))
        page = [name for name, score in found if score != since or name > last]  # equal scores: in the order of names
        if page:
            yield page
            since, last, skipped = found[-1][1], found[-1][0], 0
        elif len(found) == IDS_A_TIME:
            skipped += IDS_A_TIME  # more than a page has this one score
        if len(found) < IDS_A_TIME:
            return


def _activation(kept: bytes) -> tuple[int, str, str, float, float, str]:
    """An activated definition, in the scripts' format: a line for each value."""
    sequence, digest, schedule, activated_at, counts_from, by = kept.decode(errors="replace").split("\n", 5)
    return int(sequence), digest, schedule, float(activated_at), float(counts_from), by


def decided(ledger: Asked, job: str) -> Decided:
    """The record of a job's fire times without a row."""
    text, past, standing, read = ledger.read(
        [
            ("HGET", ledger.key("fires"), job),
            ("LRANGE", ledger.key(f"activations:{job}"), 0, -1),
            ("HGET", ledger.key(f"standing:{job}"), "horizon"),
            ("HGET", ledger.key(f"job:{job}"), "horizon"),
        ]
    )
    activations = [Activation(*_activation(line)) for line in past]
    return Decided(float(standing or read or 0.0), stretches((text or b"").decode(errors="replace")), activations)


def fired(ledger: Asked, job: str, after: float, upto: float, limit: int) -> list[Row]:
    """A job's scheduled runs that are due in that time, oldest first."""
    range_ = (f"({after!r}", repr(upto), "LIMIT", 0, limit)
    (names,) = ledger.read([("ZRANGEBYSCORE", ledger.key(f"fired:{job}"), *range_)])
    return list(ledger.rows(names))


def succeeded(ledger: Asked, jobs: Sequence[str]) -> dict[str, float]:
    """The end of the last success of each job that has one."""
    (found,) = ledger.read([("HMGET", ledger.key("succeeded"), *jobs)]) if jobs else ([],)
    return {job: float(at) for job, at in zip(jobs, found, strict=True) if at}


def mark(ledger: Asked, key: str) -> Hold | None:
    """The hold of that key, of those that no sweep tells."""
    (text,) = ledger.read([("HGET", ledger.key("holds"), key)])
    return Hold.read(text.decode(errors="replace")) if text else None


def marks(ledger: Asked, prefix: str) -> dict[str, Hold]:
    """The same for all keys that begin so."""
    (found,) = ledger.read([("HGETALL", ledger.key("holds"))])
    every = zip(found[::2], found[1::2], strict=True)
    wanted = {key.decode(errors="replace"): text for key, text in every if key.startswith(prefix.encode())}
    return {key: Hold.read(text.decode(errors="replace")) for key, text in wanted.items()}


def _identity(ledger: Asked) -> tuple[str, str, str]:
    """Identity, predecessor and who closed it; "" if missing."""
    (said,) = ledger.read([("HMGET", ledger.key("meta"), IDENTITY, PREDECESSOR, CLOSED)])
    identity, predecessor, closed = (value.decode() if value else "" for value in said)
    return identity, predecessor, closed


class _Metas:
    """core/ledger/identity.py's Meta over values that were read; new values become commands of the import's
    transaction.
    """

    def __init__(self, identity: str, predecessor: str, closed: str) -> None:
        self._said = {IDENTITY: identity, PREDECESSOR: predecessor, CLOSED: closed}
        self._put: dict[str, str] = {}

    def meta(self, key: str) -> str:
        return self._put.get(key, self._said.get(key, ""))

    def put_meta(self, key: str, value: str) -> None:
        self._put[key] = value

    def commands(self, key: str) -> list[tuple[str, ...]]:
        """Before the first script, which would refuse a closed ledger."""
        if not self._put:
            return []
        kept = [part for pair in self._put.items() if pair[1] for part in pair]
        gone = [name for name, value in self._put.items() if not value]
        return [("HSET", key, "schema", SCHEMA, *kept), ("HDEL", key, *gone)]


def import_rows(ledger: Asked, rows: Iterable[dict[str, Any]], *, replace: bool) -> int:
    """All rows or none: they are checked first, then written in one transaction. A quarantine follows."""
    predecessor, rest = take_head(rows)
    jobs, runs, attempts, holds = checked(rest)
    metas = _Metas(*_identity(ledger))
    begin_again(metas, predecessor, os.urandom(8).hex())
    every = [*map(exported, jobs), *map(exported, runs), *map(exported, attempts)]
    every += [exported_hold(key, hold) for key, hold in holds.items()]
    for fields in every:
        if "exit_code" in fields:
            fields["exit_code"] = "" if fields["exit_code"] is None else str(fields["exit_code"])
    (old_jobs,) = ledger.read([("SMEMBERS", ledger.key("jobs"))])
    old_runs = [run for page in _pages(ledger) for run in page]
    if (old_runs or old_jobs) and not replace:
        raise RefusedError(
            f"the ledger holds {len(old_runs)} runs of {len(old_jobs)} jobs",
            kind="not_empty",
            hint="export them, then import with --replace",
        )
    texts = [json.dumps(fields).encode() for fields in every]
    prefix = ledger.prefix.encode()
    drops = [b"run:" + run for run in old_runs] + [b"attempts:" + run for run in old_runs]
    kinds = (b"job:", b"standing:", b"activations:", b"active:", b"waiting:", b"fired:")
    drops += [kind + job for kind in kinds for job in old_jobs]
    drops += [b"jobs", b"open", b"ended", b"fires", b"succeeded", b"first-heard", *[name.encode() for name in HOLDS]]
    drops += [f"list:{state}:".encode() + job for state in ("", *STATES) for job in (b"", *old_jobs)]
    (still_open,) = ledger.read([("ZRANGE", ledger.key("open"), 0, -1)])
    drops += {f"slots:{key}".encode() for row in ledger.rows(still_open) for key, _ in slots(row.policy.split(" ")[-1])}
    writes = [ledger.script("put", texts[i : i + PUT_MAX]) for i in range(0, len(texts), PUT_MAX)]
    commands: list[Any] = [
        ledger.bring("put"),
        ("MULTI",),
        *[("DEL", *[prefix + name for name in drops[i : i + 1000]]) for i in range(0, len(drops), 1000)],
        *metas.commands(ledger.key("meta")),
        *writes,
        ("EXEC",),
    ]
    done = ledger.read(commands, limit_s=IMPORT_S)[-1]
    failed = [reply.text for reply in done or () if isinstance(reply, Problem)]
    if done is None or failed:
        raise UnavailableError(f"ledger {ledger.url}: the import was not finished, import again: {failed[:1]}")
    return len(every)
