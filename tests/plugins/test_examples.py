"""Examples of deploy/plugins that no daemon of a test uses: installed by pip, and called as the daemon does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from coordd.adapters.backends import function
from coordd.core.node.room import Room
from coordd.plugins import calling
from coordd.services.strategies.hosted import Hosted
from plugins.written import hosting, installed


def test_the_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "HOST", hosting(installed(tmp_path, "strategy")))
    calm = Room(least=1, most=1000, size=1, busy=0, wanted=True, load=0.1, memory=0.9, at=1.0)
    asked = [calm, calm._replace(memory=0.1)]

    async def main() -> list[int]:
        strategies = Hosted("room")
        said = None
        with trio.fail_after(60.0):
            while said is None:
                said = await strategies.ask("half", asked)
        await strategies.keep(())
        return said

    assert trio.run(main) == [max(1, (os.cpu_count() or 2) // 2), 1]


def test_the_configuration_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, scripts = installed(tmp_path, "config_backend"), tmp_path / "nightly"
    scripts.mkdir()
    for name in ("b.sh", "a.sh", "notes.txt"):
        (scripts / name).touch()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("SITE_SCRIPTS", str(scripts))
    jobs = function.ask(function.target_of("coordd.config_backends", "scripts"), 60.0)
    assert jobs == {
        "a": {"schedule": "0 2 * * *", "command": {"argv": ["/bin/sh", f"{scripts}/a.sh"]}},
        "b": {"schedule": "1 2 * * *", "command": {"argv": ["/bin/sh", f"{scripts}/b.sh"]}},
    }
