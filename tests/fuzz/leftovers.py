"""Files of a node's earlier life: the backlog, the state file, kept triggers, and the runners' files.

The first byte of an input says which file it is. No file may prevent a node from starting.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.small_cluster import EPOCH

from coordd.adapters.disk.backlog import SqliteBacklog
from coordd.adapters.disk.files import StateFile
from coordd.adapters.disk.requests import RequestFiles
from coordd.adapters.lean_json import encode
from coordd.adapters.recording import RecordingLauncher
from coordd.core.ledger.words import Policy
from coordd.core.wire import codec
from coordd.errors import UnavailableError
from coordd.ports import Message
from coordd.services.runners import Runners
from fuzz.bus import World as BusWorld, packets
from fuzz.mutate import Pool, distort, pick
from fuzz.trial import Try, check, scratch

BACKLOG, STATE, REQUEST, FACTS, SPEC = range(5)

SAID: tuple[dict[str, Any], ...] = (
    {"fact": "adopted", "token": 1, "watcher": 12, "watcher_start_ticks": 3, "boot_id": "b", "cgroup": ""},
    {"fact": "started", "program": 13, "program_start_ticks": 5},
    {"fact": "application", "application_id": "app-1"},
    {"fact": "ended", "state": "success", "exit_code": 0, "reason": "", "application_id": "app-1"},
    {"fact": "refused", "state": "retry", "exit_code": None, "reason": "late"},
    {"fact": "reported"},
)
SPEC_FIELDS: dict[str, Any] = {
    "run": "sales#1", "job": "sales", "attempt": 0, "token": 1, "nonce": "n", "fire_at": EPOCH, "args": "{}",
    "deadline": 5.0, "lease_s": 60.0, "waits": False, "cgroup": "", "argv": ["/bin/true"], "env": {},
}  # fmt: skip
REQUEST_FIELDS: dict[str, Any] = {
    "run": "sales#1",
    "job": "sales",
    "digest": "d1",
    "policy": Policy().pack(),
    "fire_at": EPOCH,
    "args": "{}",
    "by": "root",
}


class World:
    """A node's directories, with one file of each kind at a time; the node itself lives on."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.node = BusWorld()
        self.launcher = RecordingLauncher(root, root, print)
        self.directory = f"{root}/runs/one"
        os.makedirs(f"{root}/requests")

    async def attempt(self, data: bytes) -> str:
        """One file."""
        kind, content = data[0] % 5 if data else BACKLOG, data[1:]
        return (self._backlog, self._state, self._request, self._facts, self._spec)[kind](content)

    def _backlog(self, content: bytes) -> str:
        """It is read, or set aside; then it works."""
        path = f"{self.root}/backlog.db"
        Path(path).write_bytes(content)
        backlog = SqliteBacklog(path)
        outcome = "refused"
        try:
            backlog.look()
            found = backlog.first(64)
            outcome = "accepted" if found else "nothing"
            for message in found:
                check([type(value) for value in message] == [int, float, float, bytes], "no message")
            backlog.remove([message.number for message in found])
        except UnavailableError:
            backlog.close()
        backlog.append([Message(2**60, EPOCH, EPOCH + 1, b"x")], EPOCH)
        backlog.close()
        for name in os.listdir(self.root):
            if name.startswith("backlog"):
                os.unlink(f"{self.root}/{name}")
        return outcome

    def _state(self, content: bytes) -> str:
        path = f"{self.root}/node.json"
        Path(path).write_bytes(content)
        state = StateFile(path).load(wall_s=EPOCH, highest_clock=lambda: 7)
        check(state.boots >= 0 and state.clock_mark >= 0, "a counter below nothing")
        check(not state.warning or (state.boots == int(EPOCH) and state.clock_mark > 7), "made up, and below what was")
        StateFile(path).save(state.boots + 1, state.clock_mark, state.ledgers)
        check(
            StateFile(path).load(wall_s=0.0, highest_clock=int)[:2] == (state.boots + 1, state.clock_mark), "not kept"
        )
        for name in os.listdir(self.root):
            if ".bad-" in name:
                os.unlink(f"{self.root}/{name}")
        return "refused" if state.warning else "accepted"

    def _request(self, content: bytes) -> str:
        Path(f"{self.root}/requests/x.json").write_bytes(content)
        found, bad = RequestFiles(f"{self.root}/requests").load()
        check(len(found) + len(bad) == 1, "a kept trigger is neither taken up nor named")
        for of in found:
            self.node.driver.feed(self.node.driver.node.recover_request, of)
            self.node._live_on()
        return "accepted" if found else "refused"

    def _facts(self, content: bytes) -> str:
        os.makedirs(self.directory, exist_ok=True)  # an earlier one was over, and is forgotten
        Path(f"{self.directory}/spec.json").write_text(json.dumps(SPEC_FIELDS))
        Path(f"{self.directory}/facts").write_bytes(content)
        return self._taken_up()

    def _spec(self, content: bytes) -> str:
        os.makedirs(self.directory, exist_ok=True)
        Path(f"{self.directory}/spec.json").write_bytes(content)
        Path(f"{self.directory}/facts").write_bytes(b"")
        return self._taken_up()

    def _taken_up(self) -> str:
        """As a daemon does at its start, and then again and again."""
        runners = Runners(self.launcher, lambda _launch: {}, f"{self.root}/facts.sock")
        runners.driver = self.node.driver
        runners.adopt()
        for runner in list(runners.runners.values()):
            runners._take_in(runner)
            self.launcher.alive(runner.directory)
        adopted = len(runners.runners)
        self.node._live_on()
        return "accepted" if adopted else "refused"


def backlogs() -> list[bytes]:
    """Files with messages in them, as SQLite leaves them."""
    made = []
    with tempfile.TemporaryDirectory(prefix="cdf-") as directory:
        for count in (1, 4):
            path = f"{directory}/{count}.db"
            backlog = SqliteBacklog(path)
            data = [codec.encode(packet) for packet in packets()[:count]]
            backlog.append([Message(at, EPOCH, EPOCH + 9, one) for at, one in enumerate(data, 1)], EPOCH)
            backlog.close()
            made.append(Path(path).read_bytes())
            with sqlite3.connect(path) as db:
                db.execute("PRAGMA journal_mode = DELETE")
            made.append(Path(path).read_bytes())
    return made


class LeftoversTarget:
    """adapters.disk (backlog, files, requests), adapters.process; services.runners."""

    name = "leftovers"
    what = "backlog, state, kept triggers, runners' facts and specs"
    limit_s = 5.0

    def __init__(self) -> None:
        stamps = {"at": EPOCH, "boottime": 5.0, "pid": 11, "start_ticks": 2}
        self._facts = [{**stamps, **fact} for fact in SAID]
        facts = [encode(fact).encode() + b"\n" for fact in self._facts]
        state = {"boots": 3, "clock_mark": 65536, "ledgers": {"sqlite:////l": "x"}}
        self._trees: dict[int, list[Any]] = {STATE: [state], REQUEST: [REQUEST_FIELDS], SPEC: [SPEC_FIELDS]}
        texts = {kind: [json.dumps(tree).encode() for tree in trees] for kind, trees in self._trees.items()}
        texts[FACTS] = [*facts, b"".join(facts)]
        words = [b"null", b"NaN", b"[", b"{", b"}", b"\n", b'"fact":', b"[" * 5000, b"\xff"]
        self._pools = {kind: Pool(of, words) for kind, of in {**texts, BACKLOG: backlogs()}.items()}

    def make(self, rng: random.Random) -> bytes:
        """One kind of file, spoilt as bytes or as JSON that says something odd."""
        kind = pick(rng, (BACKLOG, STATE, REQUEST, REQUEST, FACTS, FACTS, FACTS, SPEC, SPEC))
        if kind == BACKLOG or rng.random() < 0.5:
            return bytes((kind,)) + self._pools[kind].make(rng)
        trees = self._facts[: 1 + int(rng.random() * len(SAID))] if kind == FACTS else [pick(rng, self._trees[kind])]
        return bytes((kind,)) + b"\n".join([json.dumps(distort(tree, rng)).encode() for tree in trees]) + b"\n"

    @asynccontextmanager
    async def world(self) -> AsyncIterator[Try]:
        """Empty directories in memory, and a node."""
        with scratch() as root:
            yield World(root).attempt
