"""What a runner loads before it starts its program: each module costs every launch a part of a millisecond."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coordd.runner.__main__ import boot

ROOT = Path(__file__).parents[2]

# The modules of ours that both kinds of ledger need. A new one makes every launch slower: is there another way?
BOTH = (
    "coordd adapters adapters.ledger core core.actions core.attempt core.ledger core.ledger.answers "
    "core.ledger.identity core.ledger.runner_requests core.ledger.words errors runner runner.__main__ runner.asker "
    "runner.holder runner.kernel runner.loop runner.program runner.tree"
)
LOADED = {
    "sqlite:///x": "adapters.ledger.sqlite_ledger adapters.ledger.sqlite_rows core.ledger.backfill "
    "core.ledger.backfill.rule core.ledger.breaker core.ledger.breaker.rule core.ledger.feed core.ledger.feed.rule "
    "core.ledger.fires core.ledger.limits "
    "core.ledger.limits.rule core.ledger.marks core.ledger.marks.rule core.ledger.people core.ledger.rerun "
    "core.ledger.rerun.rule core.ledger.revision core.ledger.revision.rule core.ledger.rows core.ledger.rules "
    "core.ledger.sound core.ledger.standing core.ledger.steps",
    "redis://h": "adapters.ledger.redis_ledger adapters.ledger.redis_scripts adapters.ledger.redis_server "
    "adapters.ledger.resp",
}
# Slow modules of the standard library (each 1 to 10 ms with what it loads itself).
SLOW = {
    *("asyncio", "collections", "contextlib", "ctypes", "dataclasses", "datetime", "enum", "functools", "hashlib"),
    *("json", "logging", "operator", "random", "re", "signal", "socket", "ssl", "threading", "typing", "urllib"),
}


def loaded(url: str) -> set[str]:
    """The modules of a process that has come as far as the fork of its runner."""
    start = boot(str(ROOT)).replace("import main; main()", "import import_ledger")
    program = f"{start}; import_ledger({url!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-E", "-c", program], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("url", LOADED)
def test_a_runner_loads_only_these_modules(url: str) -> None:
    found = loaded(url)
    ours = {name.removeprefix("coordd.") for name in found if name.partition(".")[0] == "coordd"}

    assert ours == {*BOTH.split(), *LOADED[url].split()}
    assert not found & SLOW


def test_the_cache_of_sqlite_works_without_functools() -> None:
    start = boot(str(ROOT)).replace("import main; main()", "import _sqlite_alone")
    program = (
        f"{start}; db = _sqlite_alone().connect(':memory:')\n"
        "print(*[db.execute('select ?', (n,)).fetchone()[0] for n in (1, 2)], 'functools' in sys.modules)\n"
        "import functools; print(functools.reduce(max, (1, 2)))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-E", "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "2", "False", "2"]
