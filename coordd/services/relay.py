"""Questions between nodes: one node asks others for what only their disks have, and waits a moment for the answers.

Question and answer travel in the nodes' inboxes on the bus (``peer-ask``, ``peer-answer``). Each node answers one
question at a time, in a thread, and drops questions that it cannot keep: the caller shows what it has. An older version
does not answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping

import structlog
import trio

from coordd.core.wire.events import PeerAnswer, PeerAsk
from coordd.errors import UnavailableError
from coordd.services.driver import Driver

log = structlog.get_logger("relay")

# How long (seconds) a caller waits for the other nodes.
WAIT_S = 1.0

# Maximum number of questions of this node at a time, and of questions of other nodes that wait here.
ASKED_MAX = 8
KEPT_MAX = 16

# Maximum size of an answer (bytes): it fits into a message, with its envelope.
BODY_BYTES_MAX = 24 * 1024

# Makes the answer (JSON text) to a question about a subject; it may read files.
Answer = Callable[[str], str]


class Relay:
    """Asks other nodes, and answers them."""

    def __init__(self, driver: Driver, answers: Mapping[str, Answer]) -> None:
        """``answers``: for each kind of question."""
        self._driver = driver
        self._answers = answers
        self._asked: dict[str, _Question] = {}
        self._put, self._take = trio.open_memory_channel[tuple[str, PeerAsk]](KEPT_MAX)
        self.dropped = 0
        driver.on_peer = self.heard

    async def ask(
        self, what: str, subject: str, names: Iterable[str], *, wait_s: float = WAIT_S
    ) -> dict[str, str | None]:
        """The answers of these nodes (full_hostnames); None for each that did not answer, or could not."""
        said: dict[str, str | None] = dict.fromkeys(names)
        if not said or len(self._asked) >= ASKED_MAX:
            return said
        ident = uuid.uuid4().hex
        question = self._asked[ident] = _Question(said)
        try:
            for name in said:
                self._driver.say_to(name, PeerAsk(id=ident, what=what, subject=subject))
            with trio.move_on_after(wait_s):
                await question.done.wait()
        finally:
            del self._asked[ident]
        return said

    def heard(self, sender: str, event: PeerAsk | PeerAnswer) -> None:
        """A question of another node, or an answer."""
        if isinstance(event, PeerAnswer):
            question = self._asked.get(event.id)
            if question is not None:
                question.take(sender, event)
            return
        try:
            self._put.send_nowait((sender, event))
        except trio.WouldBlock:
            self.dropped += 1

    def own(self, what: str, subject: str) -> str | None:
        """This node's own answer; None if it has none. It may read files."""
        return self._answer(PeerAsk(id="", what=what, subject=subject)).body or None

    async def run(self) -> None:
        """Answer questions, for ever."""
        async for sender, asked in self._take:
            told = await trio.to_thread.run_sync(self._answer, asked)
            self._driver.say_to(sender, told)

    def _answer(self, asked: PeerAsk) -> PeerAnswer:
        answer = self._answers.get(asked.what)
        if answer is None:
            return PeerAnswer(id=asked.id, error=f"this node does not know the question {asked.what!r}")
        try:
            body = answer(asked.subject)
        except UnavailableError as exc:
            return PeerAnswer(id=asked.id, error=str(exc)[:500])
        if len(body.encode()) > BODY_BYTES_MAX:
            return PeerAnswer(id=asked.id, error=f"the answer is larger than {BODY_BYTES_MAX} bytes")
        return PeerAnswer(id=asked.id, body=body)


class _Question:
    """A question that waits for its answers."""

    def __init__(self, said: dict[str, str | None]) -> None:
        self._said = said
        self._waits = set(said)
        self.done = trio.Event()

    def take(self, sender: str, answer: PeerAnswer) -> None:
        """Take the first answer of a node that was asked."""
        if sender not in self._waits:
            return
        self._waits.discard(sender)
        if answer.error:
            log.info("peer.cannot_answer", node=sender, reason=answer.error)
        else:
            self._said[sender] = answer.body
        if not self._waits:
            self.done.set()
