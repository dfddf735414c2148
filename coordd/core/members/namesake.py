"""Two live nodes with one name: the newer one gives way."""

from __future__ import annotations

from collections.abc import Callable

from coordd.core.context import Context
from coordd.core.members.membership import boot_count
from coordd.core.ready import Now
from coordd.core.wire.events import Packet, WorkerHello, WorkerHelloReply


class Namesakes:
    """Handles packets with our own hostname: an echo, late messages of a predecessor, or a second live node."""

    __slots__ = ("_answer", "_become", "_ctx")

    def __init__(
        self, ctx: Context, answer: Callable[[WorkerHello, str, Now], None], become: Callable[[str], None]
    ) -> None:
        """``answer`` answers a hello, ``become`` changes the node's state."""
        self._ctx = ctx
        self._answer = answer
        self._become = become

    def heard(self, packet: Packet, now: Now) -> None:
        """A packet from a sender with our hostname."""
        ctx = self._ctx
        if packet.incarnation == ctx.incarnation:
            return
        # If both start at once, one of them yields. A predecessor's late hello must not win.
        outranks = _rank(packet.incarnation) > _rank(ctx.incarnation)
        for event in packet.events:
            ctx.clock.adjust(event.clock)
            if isinstance(event, WorkerHello) and ctx.state != "stopping":
                self._answer(event, packet.sender, now)  # so that the newcomer knows
                if outranks:
                    self._refuse(packet)
            elif (
                isinstance(event, WorkerHelloReply)
                and event.to == ctx.full_hostname
                and (outranks or event.state in ("ready", "draining"))
            ):
                self._refuse(packet)

    def _refuse(self, packet: Packet) -> None:
        if self._ctx.state == "mingling":
            self._ctx.out.fatal = (
                f"another live node is named {packet.hostname!r} (pid {packet.pid}): "
                "each node needs its own [node] name, or stop the other one"
            )
            self._become("stopping")


def _rank(incarnation: str) -> tuple[int, str]:
    """Of two incarnations of one name, the higher was started later or has the higher random part."""
    return (boot_count(incarnation), incarnation)
