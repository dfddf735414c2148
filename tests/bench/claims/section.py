"""`make bench ARGS="--only claims"`: "claim once" in our ledgers and in the stores of others, in turn, in one run.

All servers run at the same time, and each phase goes from store to store in short turns, so other work on the machine
disturbs all of them alike. The time is what the client sees, with its own work.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
import uuid
from collections.abc import Sequence

from bench.claims import loss
from bench.claims.contenders import Process, ask_all
from bench.claims.stores import MAKERS, Store, stores
from bench.figures import Figure, percentile, summary

ALONE = "claim once: one client alone"
RACE = "claim once: 8 clients want the same key"
RATE = "claim once: 8 clients, each its own keys"
TAKEOVER = "claim once: the holder is killed, lease 5 s"

CLIENTS = 8
LEASE_S = 3600.0  # longer than the run: nobody has to renew
SHORT_LEASE_S = 5.0
ALONE_A_TURN = 10
TURN_S = 30.0
RACE_AHEAD_S = 0.015
BURST_S = 1.5
BURST_KEYS = 4000
ASK_EVERY_S = 0.1
SYNCS_A_TURN = 10

Samples = dict[str, list[float]]


def measure(*, quick: bool) -> list[Figure]:
    """All phases; those that could not be installed are named in the first figure."""
    with stores() as (found, missing), tempfile.TemporaryDirectory(prefix="cdb-", dir="/tmp") as root:
        clients = [Process(f"c{number}", root) for number in range(CLIENTS)]
        try:
            for store in found:
                ask_all(clients, "connect", store=store.at(LEASE_S))
                _warm(store, clients[0])
            figures = [
                *alone(found, clients[0], root, turns=4 if quick else 20),
                *race(found, clients, turns=10 if quick else 60),
                *rate(found, clients, turns=1 if quick else 3),
            ]
        finally:
            for process in clients:
                process.kill()
        figures += takeover(found, root, turns=1 if quick else 5)
        figures += loss.measure(found, root, quick=quick)
    told = "; ".join(f"{name}: {why}" for name, why in missing.items()) or "none is missing"
    return [Figure(ALONE, "stores compared", len(found), "", len(MAKERS), "=", told), *figures]


def alone(found: Sequence[Store], client: Process, root: str, turns: int) -> list[Figure]:
    """One claim after the other; beside it a bare write with fdatasync on the same disk."""
    took: Samples = {store.name: [] for store in found}
    bare: Samples = {"at the end of a file": [], "within a file": []}
    for turn in range(turns):
        for store in _order(found, turn):
            keys = _prepared(store, client, ALONE_A_TURN)
            done = client.ask("claims", store=store.at(LEASE_S), keys=keys, limit_s=TURN_S)
            _check(len(done["granted"]) == len(done["ms"]), store, "a new key was refused")
            took[store.name] += done["ms"]
        for where in bare:
            bare[where] += _syncs(root, grows=where == "at the end of a file")
    return [
        *[
            Figure(ALONE, f"a bare fdatasync {where}, p50", statistics.median(times), "ms", samples=summary(times))
            for where, times in bare.items()
        ],
        *_times(ALONE, found, took, "p50", {store.name: store.durable for store in found}),
    ]


def race(found: Sequence[Store], clients: Sequence[Process], turns: int) -> list[Figure]:
    """All clients ask for one key at one instant: until the winner knows, and until all of them know."""
    won: Samples = {store.name: [] for store in found}
    known: Samples = {store.name: [] for store in found}
    odd = dict.fromkeys(won, 0)
    for turn in range(turns):
        for store in _order(found, turn):
            (key,) = _prepared(store, clients[0], 1)
            at = time.monotonic() + RACE_AHEAD_S
            answers = ask_all(clients, "race", store=store.at(LEASE_S), key=key, at=at)
            winners = [answer["ms"] for answer in answers if answer["won"]]
            odd[store.name] += len(winners) != 1
            won[store.name] += winners
            known[store.name].append(max(answer["ms"] for answer in answers))
    told = {
        name: f"all know: p50 {statistics.median(times):.1f} ms, p99 {percentile(times, 0.99):.1f}; keys with another"
        f" number of winners than one: {odd[name]}"
        for name, times in known.items()
    }
    return _times(RACE, found, won, "the winner knows, p50", told)


def rate(found: Sequence[Store], clients: Sequence[Process], turns: int) -> list[Figure]:
    """How many claims a second eight clients get, each with one question at a time."""
    reached: Samples = {store.name: [] for store in found}
    for turn in range(turns):
        for store in _order(found, turn):
            keys = _prepared(store, clients[0], BURST_KEYS)
            share = BURST_KEYS // CLIENTS
            at = time.monotonic() + 0.1
            for number, client in enumerate(clients):
                mine = keys[number * share : (number + 1) * share]
                client.tell("burst", store=store.at(LEASE_S), keys=mine, at=at, limit_s=BURST_S)
            done = [client.heard() for client in clients]
            _check(all(one["granted"] == one["asked"] for one in done), store, "a new key was refused")
            count = sum(one["granted"] for one in done)
            reached[store.name].append(count / (max(one["ended"] for one in done) - at))
    ours = _ours(found, reached)
    return [
        Figure(
            RATE,
            store.name,
            statistics.median(reached[store.name]),
            "/s",
            detail=_ratio(statistics.median(reached[store.name]), ours),
            samples={"runs": reached[store.name]},
        )
        for store in found
    ]


def takeover(found: Sequence[Store], root: str, turns: int) -> list[Figure]:
    """From SIGKILL to the holder until another client, which asks ten times a second, has the claim."""
    took: Samples = {store.name: [] for store in found}
    waiting = {store.name: Process(f"waits-{store.kind}", root) for store in found}
    try:
        for turn in range(turns):
            for name, seconds in _one_takeover(found, waiting, root, turn).items():
                took[name].append(seconds)
    finally:
        for process in waiting.values():
            process.kill()
    return [
        Figure(
            TAKEOVER,
            f"{store.name}, p50",
            statistics.median(took[store.name]),
            "s",
            detail=f"max {max(took[store.name]):.2f} s, min {min(took[store.name]):.2f} s of {turns}",
            samples=summary(took[store.name]),
        )
        for store in found
    ]


def _one_takeover(found: Sequence[Store], waiting: dict[str, Process], root: str, turn: int) -> dict[str, float]:
    """One for each store, at the same time: most of it is waiting."""
    key = uuid.uuid4().hex
    holders = {store.name: Process(f"holds-{store.kind}-{turn}", root) for store in found}
    killed: dict[str, float] = {}
    until = time.monotonic() + 12 * SHORT_LEASE_S
    try:
        for store in found:
            holders[store.name].ask("prepare", store=store.at(SHORT_LEASE_S), keys=[key])
            _check(holders[store.name].ask("hold", store=store.at(SHORT_LEASE_S), key=key), store, "not granted")
            waiting[store.name].tell(
                "wait", store=store.at(SHORT_LEASE_S), keys=[key], every_s=ASK_EVERY_S, until=until
            )
        time.sleep(SHORT_LEASE_S * (1.0 + random.random()))  # a random instant between two renewals
        for store in found:
            killed[store.name] = time.monotonic()
            holders[store.name].kill()
        granted = {store.name: waiting[store.name].heard()["granted"] for store in found}
    finally:
        for process in holders.values():
            process.kill()
    for store in found:
        _check(key in granted[store.name], store, "nobody took over")
        _check(granted[store.name][key] > killed[store.name], store, "granted while its holder lived")
    return {name: granted[name][key] - at for name, at in killed.items()}


def _warm(store: Store, client: Process) -> None:
    """Until it grants: a new ledger of ours waits a moment before its first grant."""
    keys = _prepared(store, client, 20)
    limit = time.monotonic() + TURN_S
    while not client.ask("claims", store=store.at(LEASE_S), keys=keys, limit_s=TURN_S)["granted"]:
        _check(time.monotonic() < limit, store, "it grants nothing")


def _prepared(store: Store, client: Process, count: int) -> list[str]:
    keys = [uuid.uuid4().hex for _ in range(count)]
    client.ask("prepare", store=store.at(LEASE_S), keys=keys)
    return keys


def _times(section: str, found: Sequence[Store], took: Samples, what: str, told: dict[str, str]) -> list[Figure]:
    """A figure for each store: the median, its ratio to ours in Redis, p99."""
    ours = _ours(found, took)
    figures = []
    for store in found:
        p50 = statistics.median(took[store.name])
        p99 = percentile(took[store.name], 0.99)
        detail = f"p99 {p99:.1f} ms; {_ratio(p50, ours)}; {told[store.name]}"
        samples = {**summary(took[store.name]), "p99": p99}
        figures.append(Figure(section, f"{store.name}: {what}", p50, "ms", detail=detail, samples=samples))
    return figures


def _ours(found: Sequence[Store], values: Samples) -> float | None:
    """The median of our ledger in Redis, which the others are compared with."""
    return next((statistics.median(values[store.name]) for store in found if store.kind == "ours_redis"), None)


def _ratio(value: float, ours: float | None) -> str:
    return f"{value / ours:.2f} x coordd in Redis" if ours else "coordd in Redis is missing"


def _order(found: Sequence[Store], turn: int) -> list[Store]:
    """Another one begins in each turn."""
    first = turn % len(found)
    return [*found[first:], *found[:first]]


def _syncs(root: str, *, grows: bool) -> list[float]:
    """How long a write of 512 bytes and its fdatasync take, in ms: at the end of a file, or within one."""
    took = []
    file = os.open(f"{root}/synced-{grows}", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not grows:
            os.write(file, bytes(512 * SYNCS_A_TURN))
            os.fsync(file)
        os.lseek(file, 0, os.SEEK_END if grows else os.SEEK_SET)
        for _ in range(SYNCS_A_TURN):
            began = time.monotonic()
            os.write(file, bytes(512))
            os.fdatasync(file)
            took.append((time.monotonic() - began) * 1000)
    finally:
        os.close(file)
    return took


def _check(true: bool, store: Store, what: str) -> None:
    if not true:
        raise RuntimeError(f"{store.name}: {what}")
