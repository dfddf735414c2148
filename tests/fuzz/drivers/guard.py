"""The guard listener: bytes of drivers, in pieces, against the real framing, the real answers and a real ledger.

The first byte of an input says how the rest is cut into pieces, and whether it is signed with the nonce of the attempt.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import trio
from services.guarding.attempts import APP, Attempts, question

from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.core.jobs.owner import GREETING, mac
from coordd.core.ledger.runner_requests import Grant
from coordd.services.guarding.answering import COMMIT, OWNER
from coordd.services.guarding.listener import GuardListener
from fuzz.control import PromptLedger, Stream, at_once, pieces_of
from fuzz.mutate import Pool, distort, pick
from fuzz.trial import Try, check, scratch

WORDS = ("ok", "committed", "moved", "stale", "unknown", "refused")


class Wire(Stream):
    """What the listener needs of a stream. It signs the question, if the input says so, for the greeting it hears."""

    def __init__(self, data: bytes, cut: int, nonce: str) -> None:
        super().__init__([])
        self._data, self._cut, self._nonce = data, cut, nonce

    @property
    def socket(self) -> Self:
        """What the listener asks for the peer's address."""
        return self

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    async def send_all(self, data: bytes) -> None:
        if not self.answers:
            challenge, body = data[len(GREETING) : -1], self._data
            proof = GREETING + mac(self._nonce, b"ask " + challenge, body) + b" " if self._nonce else b""
            self._pieces = pieces_of(proof + body + b"\n" * bool(self._nonce), self._cut)
        await super().send_all(data)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class World:
    """A node with a run whose first attempt was lost, and whose second one is current."""

    def __init__(self, root: str) -> None:
        attempts = Attempts(Path(root))
        self.stale = attempts.begin("application_0_1")
        attempts.lose()
        self.current = attempts.begin(APP)
        self.attempts = attempts
        url = attempts.ledger.url
        self.service = PromptLedger(lambda: SqliteLedger(url), 2.0)
        self.listener = GuardListener(("127.0.0.1", 1), self.service)

    async def attempt(self, data: bytes) -> str:
        """One connection."""
        head, body = data[0] if data else 0, data[1:]
        signer = (None, self.stale, self.current)[head % 3]
        # Who has the nonce of an attempt, and names the application that the current one follows, has been adopted.
        may = signer is self.current or (signer is self.stale and APP.encode() in body)
        wire = Wire(body, head, signer.nonce if signer is not None else "")
        await self.listener.connected(wire)  # type: ignore[arg-type]  # a stand-in with what is asked of it
        check(self.listener._connections.total() == 0, "a connection is still counted")
        token = self.attempts.commit_token
        check(token in (0, self.current.token), "a stale attempt has the commit")
        check(not token or may or self._committed, "who may not commit has the commit")
        self._committed = bool(token)
        _, _, said = bytes(wire.answers).partition(b"\n")
        if not said:
            return "nothing"
        proof, _, answer = said[len(GREETING) : -1].partition(b" ")
        told = json.loads(answer)
        check(told["word"] in WORDS, "an unknown word")
        proved = signer is not None and proof == mac(signer.nonce, b"answer", answer)
        check(proved or told["word"] in ("refused", "unknown"), "who has not proved anything is told something")
        check(told["word"] != "ok" or may, "a stale attempt is told that it owns the run")
        return "accepted" if told["word"] == "ok" else str(told["word"])

    _committed = False


class GuardTarget:
    """Framing, proofs, and every field of a question wrong."""

    name = "guard"
    what = "the guard listener: framing, proofs, questions of drivers"
    limit_s = 5.0

    def __init__(self) -> None:
        grant = Grant(run="sales#1", attempt=1, token=1, nonce="n")  # type: ignore[arg-type]  # numbers
        self._asked = question(grant)._asdict()
        words = [b'"ask":', b'"commit"', b"null", b"NaN", b"1e999", b'"\\ud800"', b"\n", GREETING, b"[" * 3000]
        self._pool = Pool([json.dumps(self._asked).encode(), GREETING + b"0" * 64 + b" {}\n"], words, bytes_max=8192)
        self._grants: tuple[Grant, ...] = ()

    def make(self, rng: random.Random) -> bytes:
        """A question whose fields are not what they should be, or bytes."""
        head = rng.randbytes(1)
        if rng.random() < 0.4:
            return head + self._pool.make(rng)
        asked: Any = {**self._asked, "ask": pick(rng, (OWNER, COMMIT)), "attempt": head[0] % 3 - 1}
        asked |= {"token": TOKEN, "holder": TOKEN, "application": pick(rng, (APP, APP, "application_0_1", ""))}
        text = json.dumps(distort(asked, rng) if rng.random() < 0.7 else asked)
        return head + text.encode()

    @asynccontextmanager
    async def world(self) -> AsyncIterator[Try]:
        """A node whose ledger has both attempts."""
        with scratch() as root, patch.object(trio.to_thread, "run_sync", at_once):
            world = World(root)

            async def attempt(data: bytes) -> str:
                signer = (world.current, world.stale, world.current)[data[0] % 3 if data else 0]
                return await world.attempt(data.replace(str(TOKEN).encode(), str(signer.token).encode()))

            yield attempt
            world.service.close()
            world.attempts.ledger.close()


# In an input, the token of the attempt that signs it: the ledger makes tokens from its clock.
TOKEN = 4_242_424_242_424_242
