"""Mutants of the order in which a ``Ready`` is performed."""

from __future__ import annotations

from typing import Any

from coordd.core import perform
from coordd.core.perform import Shell
from coordd.core.ready import Ready
from simulator.mutants.mutant import Mutant, instead


@instead(perform, "_keep")
def _publish_before_journal(real: Any, ready: Ready, shell: Shell) -> Any:
    if ready.messages:
        shell.publish(ready.messages)
        ready.messages = []
    return real(ready, shell)


@instead(perform, "_keep")
def _launch_before_journal(real: Any, ready: Ready, shell: Shell) -> Any:
    for launch in ready.launches:
        shell.launch(launch)
    ready.launches = []
    return real(ready, shell)


@instead(perform, "_keep")
def _reply_before_disk(real: Any, ready: Ready, shell: Shell) -> Any:
    for reply in ready.replies:
        shell.reply(reply)
    ready.replies = []
    return real(ready, shell)


MUTANTS = (
    Mutant("publish before journal", "§7: the journal before what it announces", "J", _publish_before_journal),
    Mutant("launch before journal", "§7: the intent before the launch", "I12", _launch_before_journal, ("disk_full",)),
    Mutant(
        "reply before disk",
        "§7: a request on the disk before its reply",
        "L",
        _reply_before_disk,
        ("disk_full", "ledger_cut", "targeted", "power"),
    ),
)
