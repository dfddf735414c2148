"""The connections of drivers on other machines: one question and one answer each, proved by the nonce of the attempt.

The listener greets with a text of its own, and the proof is about that text too: a question that was overheard is of no
use a second time. The nonce is never sent. Connections, the size of a question and each wait are bounded. Without a
clear yes of the ledger the answer is no.
"""

from __future__ import annotations

import hmac
import json
import os
import time
from typing import Any

import structlog
import trio

from coordd.core.jobs.owner import COMMITTED, GREETING, mac
from coordd.core.ledger.words import OK, STALE, UNKNOWN
from coordd.errors import CoorddError
from coordd.ports import Ledger
from coordd.services.guarding import answering
from coordd.services.guarding.answering import REFUSED, Question, Said, question_of
from coordd.services.ledger import DRIVERS, LedgerService
from coordd.services.listening import MakeTls, Serving

log = structlog.get_logger("guard")

# Drivers at a time, in all and from one address; a further one is disconnected at once, and asks another node. So one
# machine that opens connections and says nothing does not turn the drivers of all others away.
CONNECTIONS_MAX = 64
PEER_CONNECTIONS_MAX = 16

# Timeouts (seconds): of a question, of an answer that nobody reads.
QUESTION_S = 5.0
SEND_S = 5.0

QUESTION_BYTES_MAX = 4096
WHY_MAX = 500

CHALLENGE_BYTES = 16

# The words with which a driver may begin.
MAY_BEGIN = (OK, COMMITTED)

# The same for a run that does not exist: a stranger learns nothing.
NOT_PROVED = "its proof of the nonce is wrong, or the ledger has no such attempt"


class GuardListener(Serving):
    """Answers drivers."""

    def __init__(self, address: tuple[str, int], ledger: LedgerService, make_tls: MakeTls | None = None) -> None:
        super().__init__("guard", address, CONNECTIONS_MAX, PEER_CONNECTIONS_MAX, make_tls)
        self.counts |= {"asked": 0, "refused": 0, "malformed": 0}
        self._ledger = ledger

    async def _serve(self, stream: trio.abc.Stream, peer: str) -> None:
        challenge = os.urandom(CHALLENGE_BYTES).hex().encode()
        with trio.fail_after(SEND_S):
            await stream.send_all(GREETING + challenge + b"\n")
        with trio.fail_after(QUESTION_S):
            line = await _line(stream)
        if not line:
            self.counts["malformed"] += 1
            return
        nonce, body = await self._answer(line, challenge)
        with trio.fail_after(SEND_S):
            await stream.send_all(GREETING + mac(nonce, b"answer", body) + b" " + body + b"\n")

    async def _answer(self, line: bytes, challenge: bytes) -> tuple[str, bytes]:
        """The nonce that proves the answer ("" if none is known), and the answer."""
        proof, body, question = _read(line)
        nonce, said = "", Said(REFUSED, question if isinstance(question, str) else NOT_PROVED)
        if isinstance(question, Question):
            asked = question

            def ask(ledger: Ledger) -> tuple[str, Said]:
                known = answering.nonce_of(ledger, asked)
                if not known or not hmac.compare_digest(proof, mac(known, b"ask " + challenge, body)):
                    return "", Said(REFUSED, NOT_PROVED)
                return known, answering.answer(ledger, asked, time.time())

            try:
                nonce, said = await self._ledger.query(ask, whose=DRIVERS)
                if nonce and asked.ask == answering.GATE and said.word in MAY_BEGIN and self._ledger.recovering_s:
                    # As the ledger's own gate: it may have forgotten a later attempt, whose driver works.
                    said = Said(UNKNOWN, "the ledger went back, and waits for its witnesses")
            except CoorddError as exc:
                # Without the ledger no nonce is known, so nothing can be proved: the driver asks again.
                log.debug("guard.no_ledger", reason=str(exc))
                said = Said(UNKNOWN, "the ledger does not answer")
        self.counts["asked"] += 1
        self.counts["refused"] += said.word == REFUSED
        ident = question.id if isinstance(question, Question) else None
        told: dict[str, Any] = {"id": ident, "word": said.word, "why": said.why[:WHY_MAX], "token": said.token}
        if nonce and isinstance(question, Question) and (question.ask == answering.COMMIT or said.word == STALE):
            about = {"run": question.run, "attempt": question.attempt, "ask": question.ask}
            log.info("guard.answered", **about, word=said.word, why=said.why or None)
        return nonce, json.dumps(told).encode()


def _read(line: bytes) -> tuple[bytes, bytes, Question | str]:
    """The proof, the text that it is about, and the question, or why there is none."""
    if not line.startswith(GREETING):
        return b"", b"", "expected a question of version 1"
    proof, _, body = line[len(GREETING) :].partition(b" ")
    try:
        return proof, body, question_of(json.loads(body))
    except (ValueError, RecursionError):
        return proof, body, "expected JSON"


async def _line(stream: trio.abc.Stream) -> bytes:
    """The question, without its end; b"" if there is none, or if it is too long."""
    data = b""
    while b"\n" not in data:
        piece = await stream.receive_some(QUESTION_BYTES_MAX)
        data += piece
        if not piece or len(data) > QUESTION_BYTES_MAX:
            return b""
    return data.partition(b"\n")[0]
