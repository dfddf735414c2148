"""A pytest plug-in. It records what ledgers under a stepped clock ask and hear, in the file that LUA_CONVERSATION
names.

With LUA_BRIEF set, the search for differences ends after its first round, even if it has not seen everything.

With LUA_MUTANT (the name of an edit) in the environment, it changes the scripts for the whole run and records nothing.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from contract.ledger.ledger_coverage import Seen
from support import stepped_redis

from coordd.adapters.ledger.redis_ledger import RedisLedger
from coordd.adapters.ledger.redis_scripts import Scripts
from coordd.adapters.ledger.redis_server import Server
from coordd.adapters.ledger.resp import Problem
from lua_mutants.conversation import OPERATIONS, Exchange, plain, rewritten
from lua_mutants.edits import edits

KEPT: list[Exchange] = []


def pytest_configure(config: pytest.Config) -> None:
    """Runs before any test makes a ledger."""
    wanted = os.environ.get("LUA_MUTANT", "")
    if wanted:
        changed = contextlib.ExitStack()
        changed.enter_context(rewritten(next(each for each in edits() if each.name == wanted).rewrite()))
        config.add_cleanup(changed.close)
    else:
        _listen()
    if os.environ.get("LUA_BRIEF"):
        Seen.missing = lambda *_: set()  # type: ignore[method-assign]  # for the whole run


def _listen() -> None:
    scripts = Scripts(stepped_redis.rewritten)
    names = {scripts.name(op): op for op in OPERATIONS}
    real, make = Server._try, RedisLedger.__init__
    stepped: weakref.WeakSet[Server] = weakref.WeakSet()

    def made(ledger: RedisLedger, *args: Any, **named: Any) -> None:
        make(ledger, *args, **named)
        if isinstance(ledger, stepped_redis.SteppedLedger):
            stepped.add(ledger._server)

    def exchange(server: Server, commands: Sequence[Any], deadline: float) -> list[Any]:
        replies = real(server, commands, deadline)
        for command, reply in zip(commands, replies, strict=True) if server in stepped else ():
            kept = tuple(command)
            if kept[0] == "EVALSHA":
                kept = (kept[0], names[kept[1]], *kept[2:])
            if kept[0] != "SCRIPT" and not (isinstance(reply, Problem) and reply.word == "NOSCRIPT"):
                KEPT.append((kept, plain(kept[0], reply)))
        return replies

    RedisLedger.__init__ = made  # type: ignore[assignment, method-assign]  # for the whole run
    Server._try = exchange  # type: ignore[assignment, method-assign]  # for the whole run


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Write the record to the file."""
    path = os.environ.get("LUA_CONVERSATION", "")
    if path:
        with open(path, "wb") as file:
            pickle.dump(KEPT, file)
