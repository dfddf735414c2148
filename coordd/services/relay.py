"""Questions between nodes: one node asks others for what only their disks have, and waits a moment for the answers.

Question and answer travel in the nodes' inboxes on the bus (``peer-ask``, ``peer-answer``). Each node answers one
question of each kind at a time, and drops questions that it cannot keep: the caller shows what it has, or asks again.
An older version does not answer.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping

import structlog
import trio

from coordd.core.wire.events import PeerAnswer, PeerAsk
from coordd.errors import UnavailableError
from coordd.services.driver import Driver

log = structlog.get_logger("relay")

# How long (seconds) a caller waits for the other nodes.
WAIT_S = 1.0

# Maximum number of questions of this node at a time: to many nodes at once, and to a single one. And of the questions
# of each kind that wait here: in all, and of one other node.
ASKED_MAX = 8
ASKED_ONE_MAX = 16
KEPT_MAX = 16
KEPT_OF_ONE_MAX = 8

# Maximum size of an answer (bytes): it fits into a message, with its envelope.
BODY_BYTES_MAX = 48 * 1024

# Makes the answer (JSON text) to a question about a subject; it may read files.
Answer = Callable[[str], str]

# The same for (sender, subject), in the event loop. Raises UnavailableError; each of its waits has a deadline.
Service = Callable[[str, str], Awaitable[str]]


class Relay:
    """Asks other nodes, and answers them."""

    def __init__(self, driver: Driver, answers: Mapping[str, Answer]) -> None:
        """``answers``: for each kind of question."""
        self._driver = driver
        self._answers = dict(answers)
        self._services: dict[str, Service] = {what: self._in_thread(answer) for what, answer in answers.items()}
        self._kept: dict[str, _Kept] = {what: _Kept() for what in answers}
        self._asked: dict[str, _Question] = {}
        self.dropped = 0
        driver.on_peer = self.heard

    def serve(self, what: str, service: Service) -> None:
        """Answer this kind of question too. Called before ``run``."""
        self._services[what] = service
        self._kept[what] = _Kept()

    async def ask(
        self, what: str, subject: str, names: Iterable[str], *, wait_s: float = WAIT_S
    ) -> dict[str, str | None]:
        """The answers of these nodes (full_hostnames); None for each that did not answer, or could not."""
        said: dict[str, str | None] = dict.fromkeys(names)
        if said and sum(not question.single for question in self._asked.values()) < ASKED_MAX:
            await self._ask(what, subject, _Question(said), wait_s)
        return said

    async def ask_one(self, what: str, subject: str, name: str, *, wait_s: float = WAIT_S) -> str:
        """The answer of this node (full_hostname). Raises UnavailableError."""
        if sum(question.single for question in self._asked.values()) >= ASKED_ONE_MAX:
            raise UnavailableError(f"{ASKED_ONE_MAX} questions to other nodes wait already; try again")
        said: dict[str, str | None] = {name: None}
        question = _Question(said, single=True)
        await self._ask(what, subject, question, wait_s)
        answer = said[name]
        if answer is None:
            host = name.rpartition(".")[0]
            raise UnavailableError(question.error or f"{host} did not answer within {wait_s:g} s")
        return answer

    async def _ask(self, what: str, subject: str, question: _Question, wait_s: float) -> None:
        ident = uuid.uuid4().hex
        self._asked[ident] = question
        try:
            for name in question.said:
                self._driver.say_to(name, PeerAsk(id=ident, what=what, subject=subject))
            with trio.move_on_after(wait_s):
                await question.done.wait()
        finally:
            del self._asked[ident]

    def heard(self, sender: str, event: PeerAsk | PeerAnswer) -> None:
        """A question of another node, or an answer."""
        if isinstance(event, PeerAnswer):
            question = self._asked.get(event.id)
            if question is not None:
                question.take(sender, event)
            return
        kept = self._kept.get(event.what)
        if kept is None:
            error = f"this node does not know the question {event.what[:40]!r}"
            self._driver.say_to(sender, PeerAnswer(id=event.id, error=error))
        elif not kept.put(sender, event):
            self.dropped += 1

    def own(self, what: str, subject: str) -> str | None:
        """This node's own answer; None if it has none. It may read files."""
        try:
            return self._answers[what](subject) or None
        except UnavailableError:
            return None

    async def run(self) -> None:
        """Answer questions, for ever: a slow kind holds up only its own questions."""
        async with trio.open_nursery() as nursery:
            for what in self._kept:
                nursery.start_soon(self._answer_kind, what)

    async def _answer_kind(self, what: str) -> None:
        kept = self._kept[what]
        async for sender, asked in kept.take:
            try:
                self._driver.say_to(sender, await self._answer(sender, asked))
            finally:
                kept.answered(sender)

    async def _answer(self, sender: str, asked: PeerAsk) -> PeerAnswer:
        try:
            body = await self._services[asked.what](sender, asked.subject)
        except UnavailableError as exc:
            return PeerAnswer(id=asked.id, error=str(exc)[:500])
        except Exception as exc:
            # The boundary of one question: our bug must not end the daemon; in full in the log.
            log.exception("peer.failed", what=asked.what, node=sender)
            return PeerAnswer(id=asked.id, error=f"a bug in coordd: {type(exc).__name__}")
        if len(body.encode()) > BODY_BYTES_MAX:
            return PeerAnswer(id=asked.id, error=f"the answer is larger than {BODY_BYTES_MAX} bytes")
        return PeerAnswer(id=asked.id, body=body)

    @staticmethod
    def _in_thread(answer: Answer) -> Service:
        async def service(_sender: str, subject: str) -> str:
            return await trio.to_thread.run_sync(answer, subject)

        return service


class _Kept:
    """The questions of one kind that wait to be answered, and how many of them each node has asked."""

    def __init__(self) -> None:
        self._put, self.take = trio.open_memory_channel[tuple[str, PeerAsk]](KEPT_MAX)
        self._of: Counter[str] = Counter()

    def put(self, sender: str, asked: PeerAsk) -> bool:
        """Keep a question; False if there is no room."""
        if self._of[sender] >= KEPT_OF_ONE_MAX:
            return False
        try:
            self._put.send_nowait((sender, asked))
        except trio.WouldBlock:
            return False
        self._of[sender] += 1
        return True

    def answered(self, sender: str) -> None:
        """A question of that node is done."""
        self._of -= Counter((sender,))


class _Question:
    """A question that waits for its answers. ``single``: one node is asked, and its error counts."""

    def __init__(self, said: dict[str, str | None], *, single: bool = False) -> None:
        self.said = said
        self.single = single
        self.error = ""
        self._waits = set(said)
        self.done = trio.Event()

    def take(self, sender: str, answer: PeerAnswer) -> None:
        """Take the first answer of a node that was asked."""
        if sender not in self._waits:
            return
        self._waits.discard(sender)
        if not answer.error:
            self.said[sender] = answer.body
        elif self.single:
            self.error = f"{sender.rpartition('.')[0]}: {answer.error}"
        else:
            log.info("peer.cannot_answer", node=sender, reason=answer.error)
        if not self._waits:
            self.done.set()
