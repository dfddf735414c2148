"""Runners on a machine that has no descriptor left for them: nothing that runs is given up for that."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from system.lab.processes import exists, until
from system.lab.runner_lab import BEATING, World, kill


def test_a_new_watcher_is_started_when_the_machine_has_room_again(world: World) -> None:
    attempt = world.sh(f'{BEATING.removesuffix("done")} [ -e "$OUT.go" ] && exit 0; done').begun()
    runner, old = attempt.runner(), attempt.watcher()
    limits = resource.prlimit(runner, resource.RLIMIT_NOFILE)
    resource.prlimit(runner, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{runner}/fd")), limits[1]))
    kill(old)
    until(lambda: not exists(old))
    time.sleep(1.0)
    assert exists(runner), Path(f"{attempt.directory}/runner.log").read_text()
    assert attempt.row().state == "started"

    resource.prlimit(runner, resource.RLIMIT_NOFILE, limits)
    until(lambda: attempt.watcher() != old)
    assert attempt.runner() == runner
    assert exists(attempt.watcher())

    with open(f"{attempt.out}.go", "wb"):
        pass
    assert attempt.over().state == "success"
    os.unlink(f"{attempt.out}.go")


def test_a_daemon_without_a_descriptor_does_not_end_when_it_looks_at_its_runners(world: World) -> None:
    attempt = world.sh(BEATING).begun()
    world.launcher.facts(attempt.directory)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        found = world.launcher.alive(attempt.directory), world.launcher.wake(attempt.directory)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == (True, False)
    world.launcher.command(attempt.directory, "cancel", "enough")
    assert attempt.over().state == "revoked"
