"""The Redis scripts as files: headers that list arguments and answers, and the constants of the rules."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from lua_mutants.edits import code_of
from support.ledger_calls import FakeClock, Nodes
from support.lua import headers
from support.lua.headers import LUA

from contract.ledger.ledger_coverage import ANSWERS, RECOVERING
from coordd.adapters.ledger import lua_constants
from coordd.adapters.ledger.redis_ledger import RedisLedger
from coordd.adapters.ledger.redis_scripts import BEGINNING, ROOM_OF, ROOMS, SEVERAL, Scripts
from coordd.adapters.ledger.redis_server import Server
from coordd.core.ledger.requests import ListOpen, Settled, Watched
from coordd.core.ledger.rows import Cursor
from coordd.core.ledger.runner_requests import Gate, Grant, Registration, Request
from coordd.core.ledger.words import SETTLED, STATES, WORDS, Record

OPERATIONS = sorted(ROOM_OF)
SHARED = sorted(path.stem for path in (LUA / "shared").glob("*.lua"))

# From docs/protocol.md: answers that the differential search does not reach, or whose word alone is not enough.
MORE_ANSWERS = {
    "register": "outdated differs finished",
    "open": "open",
    "page": "open",
    "ended": "open",
    "prune": "ok",
    "vouch": "ok recovering stale",
    "accept_epoch": "ok",
    "close": "ok held recovering",
    "put": "ok",
}
# These operations need no other row, or they replace a bad row.
NEVER_BAD = {"open", "page", "ended", "new_rules", "suspend", "keep", "plan", "accept_epoch", "close", "vouch"}


def code(text: str) -> str:
    """The text without comments and without the contents of strings."""
    return "\n".join(code_of(line) for line in text.split("\n"))


def defined(text: str) -> set[str]:
    """The names that a file defines for the files after it."""
    found: set[str] = set()
    for line in code(text).split("\n"):
        function = re.match(r"local function (\w+)", line)
        values = re.match(r"local ([\w, ]+?)(?: =|$)", line)
        if function:
            found.add(function[1])
        elif values:
            found.update(values[1].split(", "))
    return found


def used(text: str) -> set[str]:
    """The names that a file's code uses, without fields and keys of a table."""
    found, depth = set(), 0
    for at in re.finditer(r"[{}]|(?<![\w.])([A-Za-z_]\w*)( =(?!=))?", code(text)):
        depth += {"{": 1, "}": -1}.get(at[0], 0)
        if at[1] and not (at[2] and depth > 0):
            found.add(at[1])
    return found


def reached_through_tables(text: str) -> set[str]:
    """The files whose functions, which are fields of a table, this code calls."""
    homes = {
        name: path.stem
        for path in (LUA / "shared").iterdir()
        for name in re.findall(r"\nfunction (\w+\.\w+)", path.read_text())
    }
    return {homes[name] for name in re.findall(r"\b[A-Z]+\.\w+", code(text)) if name in homes}


def test_constants_are_those_of_the_rules() -> None:
    assert lua_constants.PATH.read_text() == lua_constants.constants(), "run: make lua"


@pytest.mark.parametrize("path", sorted(LUA.rglob("*.lua")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_script_has_a_copy_of_a_word(path: Path) -> None:
    if path == lua_constants.PATH:
        return
    quoted = set()
    for line in path.read_text().split("\n"):
        shown = code_of(line)
        quoted |= {line[at.start() + 1 : at.end() - 1] for at in re.finditer("'\0*'", shown)}

    assert not quoted & {*STATES, *WORDS, SETTLED}


def test_every_operation_has_its_file_and_every_file_its_operation() -> None:
    files = {(path.parent.name, path.stem) for path in LUA.rglob("*.lua")} - {("shared", name) for name in SHARED}

    assert files == {(room, op) for room, ops in ROOMS.items() for op in ops}
    # The runner's own questions (a commit's standing, an input) go to its socket, not to a script.
    of_ledger = {
        request for request in Request.__subclasses__() if request.__module__.startswith("coordd.core.ledger.")
    }
    assert {request.op for request in of_ledger} == ROOM_OF.keys() - {"put"}


@pytest.mark.parametrize("op", sorted([*ROOM_OF, *SEVERAL.values()]))
def test_a_script_has_room_for_further_names(redis_url: str, op: str) -> None:
    """Lua knows at most 200 local names at a time. A script with more of them does not load."""
    room = b"local one, two, three\n"
    server = Server(redis_url, 5.0)
    try:
        (loaded,) = server.ask([("SCRIPT", "LOAD", room + Scripts().text(op))], server.deadline())
    finally:
        server.drop()
    assert isinstance(loaded, bytes), loaded.text


@pytest.mark.parametrize("op", OPERATIONS)
def test_a_header_lists_the_arguments_that_the_script_takes(op: str) -> None:
    found, taken = headers.of(op), []
    for way in re.findall(r"\b(take_registration|take_number|take)\(\)", code(found.body)):
        if way == "take_registration":
            inner = code((LUA / "shared/registrations.lua").read_text()).partition(
                "local function take_registration()"
            )[2]
            taken += re.findall(r"\b(take_number|take)\(\)", inner.partition("\nend")[0])
        else:
            taken.append(way)
    fixed = found.arguments[:-1] if found.is_open else found.arguments
    assert len(taken) == len(fixed)
    for (name, unit), way in zip(fixed, taken, strict=True):
        if " or " not in unit:  # a flag, or a number that may be missing, may be read in either way
            assert way == ("take" if unit == "text" else "take_number"), name
    assert found.is_open == ("#ARGV" in found.body)


# Name in a header -> type of the value. CALLED: field of a request or value -> its name in the header.
VALUES: dict[str, type[Record]] = {
    "of": Registration,
    "grant": Grant,
    "watched": Watched,
    "settled": Settled,
    "after": Cursor,
}
CALLED = {
    ("watched", "token"): "watched_token",
    ("watched", "beat"): "watched_beat",
    ("watched", "unchanged_s"): "watched_s",
    ("settled", "upto"): "settled_to",
    ("settled", "decision"): "settled_as",
    ("settled", "after"): "settled_after",
    ("settled", "count"): "settled_count",
    ("open", "jobs"): "jobs...",
    ("ended", "jobs"): "jobs...",
}


def names_of(kind: type[Record], whose: str) -> list[str]:
    """The fields of a request, or of a value in it, in the order in which they are sent."""
    names: list[str] = []
    for name in kind.wire:
        names += (
            names_of(VALUES[name], name) if name in VALUES and whose != "settled" else [CALLED.get((whose, name), name)]
        )
    return names


@pytest.mark.parametrize("request_type", Request.__subclasses__(), ids=lambda kind: str(kind.op))
def test_a_request_is_sent_in_the_order_that_the_header_lists(request_type: type[Request[Any]]) -> None:
    listed = [name for name, _ in headers.of(request_type.op).arguments]

    assert names_of(request_type, request_type.op) == listed


@pytest.mark.parametrize("op", OPERATIONS)
def test_a_header_lists_the_words_that_the_ledger_may_answer(op: str) -> None:
    """The expected words are those that the differential search has seen (contract/ledger/ledger_coverage.py)."""
    said = " ".join(table.get(op, "") for table in (ANSWERS, RECOVERING, MORE_ANSWERS)).split()
    words = {word.partition(":")[0] for word in said}
    if headers.of(op).answers.keys() & {"open"}:
        words -= {"ok"}  # the Python code reads "ok" from an "open" answer

    assert headers.of(op).answers.keys() == words | (set() if op in NEVER_BAD else {"bad"})


def test_the_terms_before_the_arguments_are_those_that_the_beginning_lists() -> None:
    begin = headers.header("shared/begin")
    command = RedisLedger("redis://127.0.0.1:1/0").script("accept_epoch", [])

    assert command[2:4] == [1, "{coordd:default}:"]
    assert len(command[4:]) == len(begin.arguments)
    assert f"local at = {len(begin.arguments)}\n" in (LUA / "shared/begin.lua").read_text()


@pytest.mark.parametrize("op", OPERATIONS)
def test_a_script_needs_what_it_uses_and_nothing_else(op: str) -> None:
    """An unknown name fails only when its line is executed."""
    found = headers.of(op)
    texts = {name: (LUA / f"shared/{name}.lua").read_text() for name in SHARED}
    homes = {name: file for file, text in texts.items() for name in defined(text)}
    at_hand = (*BEGINNING, *found.needs)
    assert [name for name in at_hand if name not in SHARED] == []

    before: set[str] = set()
    for file in at_hand:
        missing = {homes[name] for name in used(texts[file]) if name in homes} - before - {file}
        assert not missing, f"{file}.lua uses {missing}"
        before.add(file)
    wanted = {
        homes[name] for text in (found.body, *(texts[file] for file in at_hand)) for name in used(text) & homes.keys()
    }
    assert wanted <= set(at_hand), f"{op} needs {wanted - set(at_hand)} too"
    ends_runs = any(
        "finish" in used(text) for text in (found.body, *(texts[file] for file in at_hand if file != "moves"))
    )
    assert not ends_runs or "breakers" in at_hand, "finish calls BREAKER.ended"
    reached = {homes[name] for name in used(found.body) & homes.keys()} | reached_through_tables(found.body)
    while True:
        more = {homes[name] for file in reached for name in used(texts[file]) & homes.keys()} | reached
        more |= {name for file in reached for name in reached_through_tables(texts[file]) if name in at_hand}
        if more == reached:
            break
        reached = more
    assert set(found.needs) <= reached, f"{op} does not need {set(found.needs) - reached}"


def test_a_script_is_read_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner reads only the scripts of its own four operations."""
    from coordd.adapters.ledger import redis_scripts

    read: list[str] = []
    real = redis_scripts._read

    def noted(name: str) -> str:
        read.append(name)
        return real(name)

    monkeypatch.setattr(redis_scripts, "_read", noted)
    scripts = Scripts()
    assert not read
    for op in ("gate", "renew", "renew"):
        scripts.name(op)

    assert [name for name in read if not name.startswith("shared/")] == ["runners/gate.lua", "runners/renew.lua"]
    assert len(read) == len(set(read))


def test_the_gate_of_a_runner_of_an_older_version_opens_at_the_fire_time(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an upgrade a runner that waits may read the new script, and it says nothing of a time ahead."""
    ledger = RedisLedger(redis_url, 5.0, cluster=f"t-{uuid.uuid4().hex}")
    ledger.accept_epoch()
    nodes = Nodes(ledger, FakeClock())
    now = ledger.ask(ListOpen()).wall
    waits = nodes.granted(nodes.of("a@2025-01-29T08:00:04Z", fire_at=now + 4.9))
    due = nodes.granted(nodes.of("b#1"))
    monkeypatch.setattr(Gate, "wire", ("grant",))

    early, opened = nodes.gate(waits), nodes.gate(due)
    ledger.close()

    assert (early.word, opened.word, opened.in_s) == ("early", "ok", 0.0)


def test_what_passes_a_full_memory_says_so_first() -> None:
    scripts = Scripts()
    passing = {op for op in ROOM_OF if scripts.text(op).startswith(b"local passes = true\n")}

    assert ROOM_OF.keys() - passing == {
        "register",
        "claim",
        "open",
        "page",
        "ended",
        "pass_over",
        "fill",
        "rerun",
        "new_rules",
        "activate",
        "adopt",
        "put",
    }
    assert all(scripts.text(several).startswith(b"local passes = false\n") for several in SEVERAL.values())
