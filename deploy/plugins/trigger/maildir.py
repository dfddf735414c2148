"""The trigger `maildir`: each message in a Maildir starts a run, with its sender and subject."""

import email
import email.policy
import mailbox
import os
from collections.abc import Iterator

from coordd.plugins import TriggerContext


def look(of: TriggerContext) -> Iterator[tuple[str, dict[str, str]]]:
    """All messages that are there; coordd knows which of them it has taken."""
    if not os.path.isdir(of.path):
        raise FileNotFoundError(f"{of.path} is not a directory")
    box = mailbox.Maildir(of.path, create=False)
    for key in sorted(box.keys()):
        message = email.message_from_bytes(box.get_bytes(key), policy=email.policy.default)  # decoded, and on one line
        yield key, {"sender": str(message["From"]), "subject": str(message["Subject"])}
