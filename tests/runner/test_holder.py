"""The runner's own steps, with a program that a test has made up."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from coordd.core import attempt as core
from coordd.runner.holder import NEVER, Runner


def ended(*, left: list[int]) -> Any:
    """A runner whose program has ended; ``left``: processes of its session that are alive."""
    runner: Any = Runner.__new__(Runner)
    runner.spec, runner.childless, runner.kill_again_at, runner.look_at = {"kill_grace_s": 2.0}, False, NEVER, NEVER
    runner.leftovers_kill_at = NEVER
    runner.program = SimpleNamespace(exit_code=0, pid=77, session=77, status_fd=-1, signal=lambda _number: None)
    runner.tree = SimpleNamespace(session=77, members=lambda: left, populated=lambda: False, signal=lambda _number: 1)
    runner.loop = SimpleNamespace(has=lambda _fd: False)
    runner.output = SimpleNamespace(finish=lambda: None)
    runner.attempt = SimpleNamespace(phase=core.RUNNING, deadline=9.5, ended=lambda *_args, **_more: None)
    runner._reap = lambda: None
    runner.heard, runner.pet_fd = os.pipe()
    os.set_blocking(runner.heard, False)
    return runner


def test_the_number_of_a_session_without_processes_is_given_up() -> None:
    """While the end is reported, the kernel may give it to another program."""
    runner = ended(left=[])
    runner._look_after_program()
    assert runner.tree.session == 0
    assert os.read(runner.heard, 100) == b"pet 9.5 0 77\n"


def test_the_number_of_a_session_with_processes_is_kept() -> None:
    runner = ended(left=[78])
    runner._look_after_program()
    assert runner.tree.session == 77
