"""deploy/acl names the commands that the code uses, and no other. The contract tests run with these rights."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import servers
from support.servers.rights import ACL, rabbit_monitor, rabbit_regex, rabbit_wire, redis_rules

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / "coordd/adapters/ledger"

# Commands with a subcommand, and those of other names in redis-py. Not in the file: Redis lets
# everybody log in, sentinels have their own; close() sends nothing.
PAIRS = {"config": "config|get", "script": "script|load"}
METHODS = {"delete": "del", "incr": "incrby"}
ELSEWHERE = {"auth", "sentinel", "close"}
# An option of a command, and a word of an error.
NO_COMMANDS = {"withscores", "wrongpass"}
# redis-py sends these when it connects: the database, and the name in CLIENT LIST.
BY_REDIS_PY = {"select", "client|setname"}
WORD = re.compile(r"[A-Z]{3,}")


def allowed() -> set[str]:
    return {word[1:] for word in redis_rules("c") if word.startswith("+")}


def of_scripts() -> set[str]:
    """The commands that the scripts call."""
    text = "".join([path.read_text() for path in (LEDGER / "lua").rglob("*.lua")])
    assert not re.search(r"redis\.p?call\((?!')", text), "each call names its command"
    return {name.lower() for name in re.findall(r"redis\.p?call\('(\w+)'", text)}


def of_ledger() -> Iterator[str]:
    """The first words of commands: tuples and lists that begin with a word in capitals."""
    for path in LEDGER.glob("redis_*.py"):
        for found in ast.walk(ast.parse(path.read_text())):
            if isinstance(found, ast.Tuple | ast.List) and found.elts and isinstance(found.elts[0], ast.Constant):
                word = found.elts[0].value
                if isinstance(word, str) and WORD.fullmatch(word):
                    yield PAIRS.get(word.lower(), word.lower())


def of_bus() -> set[str]:
    text = (ROOT / "coordd/adapters/bus/redis_bus.py").read_text()
    return {
        word.lower()
        for word in re.findall(r'send_command\("(\w+)"|\\r\\n([A-Z]+)\\r\\n', text)
        for word in word
        if word
    }


def of_revisions() -> set[str]:
    tree = ast.parse((ROOT / "coordd/adapters/backends/revisions.py").read_text())
    calls = [found.func for found in ast.walk(tree) if isinstance(found, ast.Call)]
    names = [f.attr for f in calls if isinstance(f, ast.Attribute) and ast.unparse(f.value) == "client"]
    return {METHODS.get(name, name) for name in names}


def test_the_commands_are_those_of_the_code() -> None:
    used = of_scripts() | set(of_ledger()) | of_bus() | of_revisions() | BY_REDIS_PY

    assert used - ELSEWHERE - NO_COMMANDS == allowed()


def test_the_rights_end_at_the_cluster() -> None:
    """A user of one cluster on a real Redis: its own keys and channels, no administration."""
    with servers.redis() as server:
        assert server.cli("ACL", "SETUSER", "coordd", "on", *redis_rules("c"), ">pw") == "OK"

        def says(*words: str) -> str:
            return server.cli("ACL", "DRYRUN", "coordd", *words)

        assert says("SET", "{coordd:c}:x", "1") == says("PUBLISH", "coordd:{c}:all", "1") == "OK"
        for words in (
            ("SET", "{coordd:d}:x", "1"), ("GET", "{coordd:c}:x"), ("PUBLISH", "coordd:{d}:all", "1"), ("FLUSHALL",),
            ("CONFIG", "SET", "save", ""), ("EVAL", "return 1", "0"), ("KEYS", "*"), ("CLIENT", "KILL", "x"),
        ):  # fmt: skip
            assert "OK" not in says(*words), words


@pytest.mark.parametrize(
    ("name", "reached"),
    [
        ("coordd.c", True),
        ("coordd.c.inbox", True),
        ("coordd.c.n1.4711.0a1b2c3d", True),
        ("coordd.c.n2.4711.0a1b2c3d", False),
        ("coordd.c:mirror", True),
        ("coordd.c.wire.0a1b2c3d", False),
        ("coordd.c2", False),
        ("coordd.c2:mirror", False),
        ("coordd.c.inbox.x", False),
        ("amq.topic", False),
    ],
)
def test_a_node_reaches_its_exchanges_and_its_own_queues(name: str, *, reached: bool) -> None:
    assert bool(re.match(rabbit_regex("c", "n1"), name)) is reached


@pytest.mark.parametrize(
    ("name", "rights"),
    [
        ("coordd.c", "read"),
        ("coordd.c.inbox", "read"),
        ("coordd.c.wire.0a1b2c3d", "configure write read"),
        ("coordd.c.n1.4711.0a1b2c3d", ""),
        ("coordd.c:mirror", ""),
        ("coordd.c2", ""),
        ("coordd.c2.wire.0a1b2c3d", ""),
    ],
)
def test_the_user_of_wire_reads_the_exchanges_and_makes_only_its_own_queue(name: str, rights: str) -> None:
    kinds = zip(("configure", "write", "read"), rabbit_wire("c"), strict=True)
    assert " ".join([kind for kind, regex in kinds if re.match(regex, name)]) == rights


@pytest.mark.parametrize(
    ("name", "reached"),
    [
        ("coordd.c:mirror", True),
        ("celeryev.0a1b-2c3d", True),
        ("coordd.c", False),
        ("coordd.c.inbox", False),
        ("coordd.c.n1.4711.0a1b2c3d", False),
        ("coordd.c2:mirror", False),
    ],
)
def test_a_monitor_reaches_the_mirror_and_not_the_bus(name: str, *, reached: bool) -> None:
    assert bool(re.match(rabbit_monitor("c"), name)) is reached


def test_the_files_are_installed_and_named() -> None:
    page = (ROOT / "docs/operate.md").read_text()

    assert {path.name for path in ACL.iterdir()} == {
        *("redis.rules", "redis-wire.rules", "sentinel.rules"),
        *("rabbitmq.regex", "rabbitmq-wire.regex", "rabbitmq-monitor.regex"),
    }
    assert all(path.name in page for path in ACL.iterdir())
    assert '"share/coordd/acl" = ["deploy/acl/*"]' in (ROOT / "pyproject.toml").read_text()
