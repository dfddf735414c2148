"""What `doctor` says of messages of other processes."""

from __future__ import annotations

from collections.abc import Iterable

from coordd.config.hooks.publisher import Publisher
from coordd.core.node.node import Node
from coordd.services.control.doctor import OK, WARN, Check, check
from coordd.services.publishing.methods import waiting
from coordd.services.publishing.passing import Passing

ADVICE = "coordctl message list; docs/runbook.md: a message was not delivered"


def message_checks(node: Node, publishers: Iterable[Publisher], passing: Passing) -> list[Check]:
    """One line for each destination: a warning while an address fails here, or a message waits to be tried again."""
    ones = list(publishers)
    backlog = waiting(node, [one.name for one in ones])
    told = []
    for one in ones:
        of, (_, failing) = backlog[one.name], passing.state(one)
        text = f"messages go to {one.about}"
        if of.messages:
            text += f"; {of.messages} wait, {of.again} of them to be tried again"
        text += "".join([f"; {address} is tried last: {why}" for address, why in failing.items()])
        told.append(check(f"publish {one.name}", WARN if of.again or failing else OK, text, ADVICE))
    return told
