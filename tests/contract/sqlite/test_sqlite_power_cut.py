"""After the SQLite ledger has answered, the write is on the disk. Every write and fsync is recorded, and the power is
cut at each answer. The disk then has everything that was synced, and any part of the rest."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from syscalls.faults import compile_c

ROOT = Path(__file__).parents[3]

# The struct record in faults.c: kind (w write, t truncate, s sync, u unlink), device, inode, offset, length; data
# follows a w.
RECORD = struct.Struct("<c7xQQqQ")

RUNS = 40

# Claims, starts and ends runs. After each answer it writes to a separate file, which is in the recording too.
WORK = """
import json, os, sys, time
from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.core.ledger.requests import Claim
from coordd.core.ledger.runner_requests import Gate, Grant, Registration, Report
from coordd.core.ledger.words import Policy
directory, runs = sys.argv[1], int(sys.argv[2])
ledger = SqliteLedger(f"sqlite:///{directory}/ledger.db")
answers = os.open(f"{directory}/answers", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
def answered(run, state):
    inodes = [os.stat(f"{directory}/ledger.db{end}").st_ino for end in ("", "-wal")]
    os.write(answers, json.dumps({"run": run, "state": state, "inodes": inodes}).encode() + b"\\n")
for number in range(runs):
    run, nonce = f"job#{number}", f"nonce-{number}"
    of = Registration(run, "job", "digest", Policy(), time.time(), scheduled=False, args="x" * 2000)
    token = ledger.ask(Claim(of=of, attempt=0, nonce=nonce, node="edge-1", lease_s=60.0)).token
    grant = Grant(run=run, attempt=0, token=token, nonce=nonce)
    answered(run, "received")
    assert ledger.ask(Gate(grant=grant)).word == "ok"
    answered(run, "started")
    assert ledger.ask(Report(grant=grant, state="success", exit_code=0)).word == "ok"
    answered(run, "success")
"""


class Disk:
    """The disk after a power cut: of each file the synced contents, and the writes that were not synced."""

    def __init__(self) -> None:
        self.synced: dict[int, bytearray] = {}
        self.waiting: dict[int, list[tuple[bytes, int, bytes]]] = {}

    def take(self, kind: bytes, inode: int, offset: int, data: bytes) -> None:
        if kind == b"u":  # another file may get its inode
            self.synced.pop(inode, None)
            self.waiting.pop(inode, None)
        elif kind == b"s":
            self.synced[inode] = self.after(inode, self.waiting.pop(inode, []))
        else:
            self.waiting.setdefault(inode, []).append((kind, offset, data))

    def after(self, inode: int, writes: list[tuple[bytes, int, bytes]]) -> bytearray:
        image = bytearray(self.synced.get(inode, b""))
        for kind, offset, data in writes:
            if kind == b"t":
                del image[offset:]
            else:
                image.extend(bytes(max(0, offset - len(image))))
                image[offset : offset + len(data)] = data
        return image

    def cut(self, inode: int, rng: random.Random) -> bytearray:
        """Each write that was not synced is either on the disk or lost."""
        return self.after(inode, [write for write in self.waiting.get(inode, []) if rng.random() < 0.5])


class Answered(NamedTuple):
    run: str
    state: str
    disk: Disk
    inodes: tuple[int, int]


def answers(tape: bytes, of: int) -> Iterator[Answered]:
    """Replay the recording; at each answer yield the disk of that moment. ``of`` is the inode of the answers' file."""
    disk = Disk()
    at = 0
    while at < len(tape):
        kind, _, inode, offset, length = RECORD.unpack_from(tape, at)
        at += RECORD.size
        data = tape[at : at + length] if kind == b"w" else b""
        at += len(data)
        if inode != of:
            disk.take(kind, inode, offset, data)
        elif kind == b"w":
            said = json.loads(data)
            yield Answered(said["run"], said["state"], disk, tuple(said["inodes"]))


def test_what_was_answered_survives_a_power_cut(tmp_path: Path) -> None:
    library = compile_c("faults", tmp_path, library=True)
    env = {**os.environ, "LD_PRELOAD": str(library), "TAPE": str(tmp_path / "tape"), "PYTHONPATH": str(ROOT)}
    home = tmp_path / "home"
    home.mkdir()
    (home / "answers").touch()  # before SQLite deletes a file whose inode it could get
    subprocess.run([sys.executable, "-c", WORK, str(home), str(RUNS)], check=True, env=env, cwd=home)
    rng = random.Random(1)
    seen = 0
    after = tmp_path / "after"
    after.mkdir()
    for answered in answers((tmp_path / "tape").read_bytes(), (home / "answers").stat().st_ino):
        for inode, end in zip(answered.inodes, ("", "-wal"), strict=True):
            (after / f"ledger.db{end}").write_bytes(answered.disk.cut(inode, rng))
        (after / "ledger.db-shm").unlink(missing_ok=True)
        db = sqlite3.connect(after / "ledger.db")
        row = db.execute("SELECT state FROM runs WHERE run = ?", (answered.run,)).fetchone()
        (sound,) = db.execute("PRAGMA quick_check").fetchone()
        db.close()
        assert row == (answered.state,), f"{answered.run} was answered {answered.state}; after a power cut it is {row}"
        assert sound == "ok"
        seen += 1
    assert seen == 3 * RUNS
