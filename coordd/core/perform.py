"""Performing a ``Ready``: the one place that knows the order. A shell implements only the single steps.

The order is the law: a mark before any stamp that it covers; the journal before the messages; a request on the disk
before its reply; the intent before the launch. If the disk refuses a step, this module decides what follows, so that
the simulator tests it too. The node is told afterwards, never in the middle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from coordd.core.ledger.runner_requests import Registration
from coordd.core.node.node import Node
from coordd.core.ready import Elected, Launch, LedgerRequest, Notice, Now, Outcome, Ready, Reply
from coordd.core.wire.events import Event


class Shell(Protocol):
    """The steps, done by a node's machine. If the disk refuses a ``save_...``, the shell itself tries it again."""

    def now(self) -> Now:
        """Both clocks."""

    def stop(self, reason: str) -> None:
        """The node must stop."""

    def save_mark(self, mark: int) -> None:
        """Store the clock's mark."""

    def save_pin(self, identity: str) -> None:
        """Store the identity of the node's ledger."""

    def save_definitions(self, definitions: Mapping[str, tuple[str, int, float]]) -> None:
        """Store the node's definitions."""

    def journal(self, events: Sequence[Event], *, sync: bool) -> str:
        """Append these lines; returns why the disk refuses them, "" on success."""

    def save_alarms(self) -> None:
        """Store ``node.alarms``."""

    def keep_request(self, of: Registration) -> str:
        """Store an accepted trigger; returns why the disk refuses it, "" on success."""

    def forget_request(self, run: str) -> None:
        """The ledger has that trigger: remove it."""

    def ask(self, requests: Sequence[LedgerRequest]) -> None:
        """Ask the ledger."""

    def launch(self, launch: Launch) -> None:
        """Start a runner."""

    def cancel(self, run: str, reason: str) -> None:
        """Tell the runner of a run to end it, if it is here."""

    def publish(self, events: list[Event]) -> None:
        """Broadcast."""

    def send(self, name: str, event: Event) -> None:
        """Send to one node, by full_hostname."""

    def elected(self, elected: Elected) -> None:
        """This node is first in an election that a person opened."""

    def reply(self, reply: Reply) -> None:
        """Answer a waiting caller."""

    def log(self, journal: Sequence[Event], notices: Sequence[Notice]) -> None:
        """Log both: recorded events, and notices."""

    def state(self, state: str) -> None:
        """The node's state has changed."""


def pump(node: Node, shell: Shell) -> None:
    """Do everything that the node wants, until it wants nothing more."""
    while node.wants_something():
        outcome = perform(node.ready(), shell)
        if outcome is not None:
            node.performed(outcome, shell.now())


def perform(ready: Ready, shell: Shell) -> Outcome | None:
    """Do all of it, in order. Returns the results that the node must know, or None."""
    if ready.fatal:
        shell.stop(ready.fatal)
        return None
    outcome, unkept = _keep(ready, shell)
    if ready.ledger:
        shell.ask(ready.ledger)
    # no intent on the disk, no launch: another node may have a better disk
    if outcome is None or not outcome.unlaunched:
        for launch in ready.launches:
            shell.launch(launch)
    for run, reason in ready.cancels:
        shell.cancel(run, reason)
    if ready.messages:  # whatever the disk said: the other nodes must know
        shell.publish(ready.messages)
    for name, event in ready.unicasts:
        shell.send(name, event)
    for elected in ready.elected:
        shell.elected(elected)
    for reply in ready.replies:
        refused = unkept.get(reply.result.get("id", "")) if unkept and not reply.kind else None
        shell.reply(reply if refused is None else _refused(reply.id, refused))
    if ready.journal or ready.notices:
        shell.log(ready.journal, ready.notices)
    if ready.state:
        shell.state(ready.state)
    return outcome


def _keep(ready: Ready, shell: Shell) -> tuple[Outcome | None, dict[str, str]]:
    """Write everything that must be on the disk before any message or action; returns why triggers were refused."""
    if ready.clock_mark is not None:
        shell.save_mark(ready.clock_mark)
    if ready.pin:
        shell.save_pin(ready.pin)
    if ready.definitions is not None:
        shell.save_definitions(ready.definitions)
    refused = shell.journal(ready.journal, sync=ready.journal_sync) if ready.journal else None
    if ready.alarms_changed:
        shell.save_alarms()
    unkept: dict[str, str] = {}
    for of in ready.requests_kept:
        if why := shell.keep_request(of):
            unkept[of.run] = why
    for run in ready.requests_done:
        shell.forget_request(run)
    if refused is None and not unkept:
        return None, unkept
    return Outcome(refused, ready.launches if refused else [], list(unkept)), unkept


def _refused(reply: int, why: str) -> Reply:
    """A trigger that cannot be stored is not accepted."""
    return Reply(reply, {}, "unavailable", f"neither the ledger nor this node's disk took it: {why}")
