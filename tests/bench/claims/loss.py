"""A store that loses its last second: which claims does it grant a second time?

While the store is idle, its processes are stopped and its directory is copied. A first client then claims for a second.
The store is killed, its directory becomes the copy again, and it starts. From then on a second client asks for the same
keys. The first one lives, and does not renew. A claim is granted twice if the second client gets it within the lease of
the first one, counted from the first one's question.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.claims.contenders import Process
from bench.claims.stores import Store
from bench.figures import Figure

At = tuple[str, str, float]  # a store as a contender's command names it

SECTION = "claim once: the store loses its last second"

LEASE_S, QUICK_LEASE_S = 20.0, 10.0
BEFORE, WITHIN = 10, 40  # claims before the copy, and the maximum in the second after it
SECOND_S = 1.0
ASK_EVERY_S = 0.1

# Our quarantine is lease + 10 s, from the first question after the start; the second client asks for longer than that.
LATER_S = 10.0 + 12.0
PATIENCE_S = 30.0


@dataclass
class Loss:
    """One experiment: a store, its clients, and when the first one asked for what it was granted (CLOCK_MONOTONIC)."""

    what: str
    at: At
    first: Process
    second: Process
    witness: Process | None
    lost: list[str]  # the keys that are claimed in the lost second
    fresh: str = field(default_factory=lambda: uuid.uuid4().hex)  # a key that nobody has claimed
    before: dict[str, float] = field(default_factory=dict)
    within: dict[str, float] = field(default_factory=dict)
    grants: Any = None
    back_at: float = 0.0

    @property
    def processes(self) -> list[Process]:
        """All of its processes."""
        return [process for process in (self.first, self.second, self.witness) if process is not None]


def measure(stores: Sequence[Store], root: str, *, quick: bool) -> list[Figure]:
    """All stores in turn, except for the asking, which is mostly waiting and takes place at the same time."""
    lease_s = QUICK_LEASE_S if quick else LEASE_S
    losses: list[Loss] = []
    try:
        for store in stores:
            made = [_loss(*variant, lease_s, root) for variant in _variants(store)]
            losses += made
            _lose(store, made)
        answers = [loss.second.heard()["granted"] for loss in losses]
        return [_figure(loss, granted) for loss, granted in zip(losses, answers, strict=True)]
    finally:
        for process in [process for loss in losses for process in loss.processes]:
            process.kill()


def _variants(store: Store) -> list[tuple[str, Store, bool]]:
    """What, the store, whether there is a witness. Ours in Redis twice, as two clusters on one server."""
    if store.kind != "ours_redis":
        return [(store.name, store, False)]
    url, _ = store.address.split()
    return [
        (f"{store.name}, a witness lives", replace(store, address=f"{url} witnessed"), True),
        (f"{store.name}, no witness is left", replace(store, address=f"{url} silent"), False),
    ]


def _loss(what: str, store: Store, witnessed: bool, lease_s: float, root: str) -> Loss:
    """Its processes, and the claims before the copy."""

    def process(word: str) -> Process:
        return Process(f"{store.kind}-{word}-{uuid.uuid4().hex[:4]}", root)

    loss = Loss(
        what,
        store.at(lease_s),
        process("first"),
        process("second"),
        process("witness") if witnessed else None,
        _keys(WITHIN),
    )
    keys = _keys(BEFORE)
    loss.first.ask("prepare", store=loss.at, keys=[*keys, *loss.lost, loss.fresh])
    # Not in one go: a new ledger of ours waits a moment before its first grant.
    limit = time.monotonic() + PATIENCE_S
    while left := [key for key in keys if key not in loss.before]:
        if time.monotonic() > limit:
            raise TimeoutError(f"{what}: it grants nothing within {PATIENCE_S:g} s")
        loss.before |= loss.first.ask("claims", store=loss.at, keys=left, limit_s=lease_s)["granted"]
    return loss


def _lose(store: Store, losses: Sequence[Loss]) -> None:
    """From the copy to the start of the asking."""
    copy = Path(f"{store.directory}.copy")
    with _frozen(store):
        subprocess.run(["cp", "-a", store.directory, copy], check=True)
    for loss in losses:
        loss.first.tell("claims", store=loss.at, keys=loss.lost, limit_s=SECOND_S)
    for loss in losses:
        loss.within = loss.first.heard()["granted"]
        if loss.witness is not None:
            loss.grants = loss.first.ask("grants", store=loss.at)
    if store.server is None:  # the file is replaced, so nobody may have it open
        for loss in losses:
            loss.first.ask("drop", store=loss.at)
    else:
        store.server.kill()
        _gone(store)
    shutil.rmtree(store.directory)
    copy.rename(store.directory)
    if store.server is not None:
        store.server.start()
    for loss in losses:
        loss.back_at = time.monotonic()
        until = loss.back_at + loss.at[2] + LATER_S
        keys = [*loss.before, *loss.within, loss.fresh]
        loss.second.tell("wait", store=loss.at, keys=keys, every_s=ASK_EVERY_S, until=until)
        if loss.witness is not None:
            loss.witness.tell("testify", store=loss.at, grants=loss.grants, until=until)


def _figure(loss: Loss, granted: dict[str, float]) -> Figure:
    lease_s = loss.at[2]

    def twice(keys: dict[str, float]) -> int:
        return sum(key in granted and granted[key] < at + lease_s for key, at in keys.items())

    def again(keys: dict[str, float]) -> int:
        return sum(key in granted for key in keys) - twice(keys)

    samples = {
        "granted_in_the_second": len(loss.within),
        "twice_within_the_lease": twice(loss.within),
        "again_after_the_lease": again(loss.within),
        "older": len(loss.before),
        "older_twice_within_the_lease": twice(loss.before),
        "older_again_after_the_lease": again(loss.before),
        "new_key_s": granted[loss.fresh] - loss.back_at if loss.fresh in granted else None,
    }
    new = f"{samples['new_key_s']:.1f} s after the start" if samples["new_key_s"] is not None else "not in time"
    told = (
        f"of {len(loss.within)}; of {len(loss.before)} older ones {twice(loss.before)}; again after the lease:"
        f" {again(loss.within)} and {again(loss.before)}; a new key is granted {new}"
    )
    return Figure(
        SECTION, f"{loss.what}: granted twice within the lease", twice(loss.within), detail=told, samples=samples
    )


def _keys(count: int) -> list[str]:
    return [uuid.uuid4().hex for _ in range(count)]


@contextlib.contextmanager
def _frozen(store: Store) -> Iterator[None]:
    """Stop the store's processes: a copy made meanwhile is one instant."""
    pids = _family(store.server.pid) if store.server else []
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _family(pid: int) -> list[int]:
    """A process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [pid, *map(int, children.split())]


def _gone(store: Store) -> None:
    """PostgreSQL's processes end by themselves after the first one, and then let go of their memory."""
    lock = store.directory / "data" / "postmaster.pid"
    limit = time.monotonic() + 10.0
    while lock.exists() and time.monotonic() < limit and _using(store.directory):
        time.sleep(0.05)


def _using(directory: Path) -> bool:
    """True if a process has its working directory there."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(directory):
                return True
    return False
