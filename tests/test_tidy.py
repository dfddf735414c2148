"""The architecture as a test: which module may import which, what stays pure, where things belong, and the limits."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from coordd.services.control import disclosure
from coordd.services.control.methods import Methods

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "coordd"
MODULES = sorted(PACKAGE.rglob("*.py"))
EVERYTHING = sorted(path for top in ("coordd", "tests", "deploy", "docs") for path in (ROOT / top).rglob("*.py"))

# Read this table as the diagram. A layer may import itself and the layers that its entry lists.
MAY_IMPORT = {
    "__init__": set(),
    "errors": set(),
    "core": {"errors"},
    "ports": {"core", "errors"},
    "plugins": {"core"},
    "config": {"plugins", "core", "errors"},
    "services": {"__init__", "plugins", "ports", "config", "core", "errors"},
    "adapters": {"__init__", "ports", "config", "core", "errors"},
    "runner": {"__init__", "adapters", "ports", "core", "errors"},
    "connecting": {"plugins", "services", "adapters", "config", "ports", "core", "errors"},
    "launching": {"__init__", "connecting", "ports", "services", "adapters", "config", "core", "errors"},
    "daemon": {"__init__", "connecting", "launching", "services", "adapters", "config", "ports", "core", "errors"},
    "once": {"runner", "adapters", "core", "errors"},
    "cli": {
        "__init__",
        "plugins",
        "client",
        "history",
        "daemon",
        "once",
        "services",
        "adapters",
        "config",
        "core",
        "errors",
    },
    "client": {"calls", "answers", "adapters", "errors"},
    "calls": {"answers", "adapters"},
    "answers": set(),
    "single": {"once", "errors"},
    "outcomes": {"plugins", "services", "adapters", "config", "core", "errors"},
    "guard": set(),
    "resilience": {"guard"},
    "__main__": {"cli", "once"},
    "history": {"guard", "core", "errors"},
}

# The history uses only these parts of the core; the replay also asks the rules.
HISTORY_CORE = {
    "coordd.core.election",
    "coordd.core.names",
    "coordd.core.groups.expand",
    "coordd.core.ledger.answers",
    "coordd.core.ledger.requests",
    "coordd.core.ledger.rows",
    "coordd.core.ledger.rules",
    "coordd.core.ledger.runner_requests",
    "coordd.core.ledger.steps",
    "coordd.core.ledger.words",
    "coordd.core.ledger.fires",
    "coordd.core.wire.chain",
    "coordd.core.wire.events",
    "coordd.core.wire.merge",
    "coordd.core.wire.journal_line",
    "coordd.core.jobs.job",
    "coordd.core.jobs.schedule",
}

# The only place (or the few places) where a library may be imported.
LIBRARY_HOME = {
    "trio": (
        "services/",
        "adapters/bus/unix_bus.py",
        "adapters/bus/unix_peer.py",
        "adapters/bus/aio.py",
        "adapters/bus/brokered_bus.py",
        "adapters/bus/amqp_lane.py",
        "adapters/bus/no_bus.py",
        "adapters/ledger/redis_loop.py",
        "adapters/mirror/",
        "adapters/triggers/",
        "daemon.py",
        "plugins/host.py",  # services of packages may be coroutine functions
        "cli/coordd.py",
        "cli/web/",
    ),
    "asyncio": (
        "adapters/bus/aio.py",
        "adapters/bus/brokered_bus.py",
        "adapters/bus/no_bus.py",
        "adapters/bus/amqp_",
        "adapters/bus/redis_bus.py",
        "adapters/mirror/",
        "adapters/publishing/",
        "adapters/triggers/amqp_queue.py",
        "cli/wire/taps.py",
        "outcomes/brokers.py",
    ),
    "msgpack": ("cli/wire/reading.py", "adapters/triggers/documents.py"),
    "uvloop": ("adapters/bus/aio.py",),
    "aio_pika": (
        "adapters/bus/amqp_connect.py",
        "adapters/bus/amqp_session.py",
        "adapters/mirror/",
        "adapters/publishing/",
        "adapters/triggers/",
    ),
    "aiormq": ("adapters/bus/amqp_session.py",),
    "yarl": ("adapters/bus/amqp_connect.py", "adapters/bus/amqp_session.py"),
    "pamqp": ("adapters/bus/amqp_frames.py", "adapters/bus/amqp_tolerant.py"),
    "redis": (
        "adapters/bus/redis_bus.py",
        "adapters/backends/revisions.py",
        "adapters/triggers/redis_stream.py",
        "cli/wire/taps.py",
        "outcomes/brokers.py",
    ),
    "pyarrow": ("outcomes/files.py",),
    "packaging": ("plugins/installed.py",),
    "anyio": ("client.py", "single.py", "resilience.py"),
    "tenacity": ("resilience.py",),
    "structlog": ("services/", "adapters/logs.py", "daemon.py"),
    "msgspec": ("core/", "config/", "services/driver.py", "connecting.py"),
    "prometheus_client": ("services/metrics/",),
    "h11": ("services/metrics/", "services/checks/", "services/triggering/calls.py", "cli/web/"),
    "opentelemetry": ("adapters/tracing/",),
    "requests": ("adapters/tracing/",),
    "jinja2": ("cli/web/",),
    "cronsim": ("core/jobs/schedule.py",),
    "tzdata": ("config/jobfile.py", "core/jobs/schedule.py"),
    "click": ("cli/",),
    "rich": ("cli/",),
    "pyspark": ("history/", "guard.py"),  # the guard reads the conf of the driver that it runs in
    "py4j": ("history/job.py",),  # what it raises where Java fails
    "sqlite3": (
        "adapters/ledger/sqlite_ledger.py",
        "adapters/ledger/sqlite_rows.py",
        "adapters/disk/backlog.py",
        "adapters/disk/copies.py",
        "adapters/triggers/sql_program.py",
    ),
    "psycopg": ("adapters/triggers/sql_program.py",),
}

# Pure code uses no clock, no randomness, no files, no tasks, no logging.
CORE_STDLIB = {
    "__future__", "bisect", "collections", "datetime", "enum", "functools", "hashlib", "heapq", "hmac", "ipaddress",
    "itertools", "json", "math", "re", "string", "types", "typing", "uuid", "zlib", "zoneinfo", "difflib", "operator",
    "importlib",  # core/jobs/schedule.py reads the zones of the tzdata package, which are data, not the machine
}  # fmt: skip
CORE_LIBRARIES = {"msgspec", "cronsim", "tzdata"}

# The runner loads these before it starts a job, and each import takes milliseconds.
IMPORT_FREE = {
    "core/ledger/rows.py",
    "core/ledger/words.py",
    "core/ledger/answers.py",
    "core/ledger/runner_requests.py",
    "core/ledger/steps.py",
    "core/ledger/people.py",
    "core/ledger/rules.py",
    "core/actions.py",
    "core/attempt.py",
}

LEFT_OUT = {"__pycache__", ".hypothesis"}
FOLDERS = sorted(
    {
        path.parent
        for top in ("coordd", "tests", "deploy", "docs", "systemd")
        for path in (ROOT / top).rglob("*")
        if path.is_file() and not LEFT_OUT & set(path.parts)
    }
)
ROOMS = sorted({path.parent for path in MODULES})
FOLDER_FILES_MAX = 14

# Programs ship this file alone, so it cannot be split.
LINES_MAX_ALONE = {"coordd/guard.py": 770}
LINES_MAX = 560  # above about 400 lines, look for a place to split; no file may exceed this limit
FUNCTION_LINES_MAX = 60


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(module, line) of every import that is executed (not those under TYPE_CHECKING)."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped.update(id(inner) for inner in ast.walk(node))
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: absolute imports only"
            if node.module == "coordd":
                yield from ((f"coordd.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield str(node.module), node.lineno


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_keeps_to_its_layer(path: Path) -> None:
    here = str(path.relative_to(PACKAGE))
    layer = here.split("/", maxsplit=1)[0].removesuffix(".py")
    tree = ast.parse(path.read_text())
    assert layer in MAY_IMPORT, f"{layer} has no place in the map"
    assert ast.get_docstring(tree), "a module says in one sentence what it is for"
    for name, line in imports(tree):
        top, _, rest = name.partition(".")
        if top == "coordd":
            target = rest.split(".")[0] or "__init__"
            if target.startswith("__version__"):
                target = "__init__"
            assert target == layer or target in MAY_IMPORT[layer], f"line {line}: {layer} must not import {name}"
            if layer == "history" and target == "core":
                assert name in HISTORY_CORE, f"line {line}: {name} is not for Spark"
        elif top in LIBRARY_HOME:
            assert here.startswith(LIBRARY_HOME[top]), f"line {line}: {name} is at home in {LIBRARY_HOME[top]}"
        if layer == "core" and top != "coordd":
            assert top in CORE_STDLIB | CORE_LIBRARIES, f"line {line}: the core does not import {name}"


@pytest.mark.parametrize("path", [path for path in MODULES if (PACKAGE / "core") not in path.parents], ids=str)
def test_nothing_outside_the_core_touches_what_the_parts_of_a_node_share(path: Path) -> None:
    tree = ast.parse(path.read_text())
    touched = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "ctx"]
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}

    assert touched == [], "read what coordd/core/node/shown.py shows, or call an input of the node"
    assert "Context" not in names


@pytest.mark.parametrize("here", sorted(IMPORT_FREE))
def test_what_the_runner_loads_imports_nothing(here: str) -> None:
    tops = {name.split(".")[0] for name, _ in top_level_imports(PACKAGE / here)}

    assert tops <= {"coordd"}


def top_level_imports(path: Path) -> Iterator[tuple[str, int]]:
    """Imports that happen when the module is loaded."""
    tree = ast.parse(path.read_text())
    body = ast.Module([n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))], [])
    return imports(body)


@pytest.mark.parametrize("path", [p for p in MODULES if "core" in p.parts], ids=lambda path: path.name)
def test_the_core_never_waits(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("open", "print", "input"), f"line {node.lineno}: {node.func.id}"


@pytest.mark.parametrize("path", EVERYTHING, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_too_long_to_hold_in_the_head(path: Path) -> None:
    text = path.read_text()

    assert text.count("\n") <= LINES_MAX_ALONE.get(str(path.relative_to(ROOT)), LINES_MAX)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert (node.end_lineno or 0) - node.lineno < FUNCTION_LINES_MAX, node.name


def test_somebody_has_decided_what_viewers_see() -> None:
    """A new event, field or method needs a line in services/control/disclosure.py, which
    says whether viewers see it.
    """
    assert disclosure.undecided_events() == []
    assert sorted(Methods.table(Methods.__new__(Methods))) == sorted(disclosure.METHODS)


def test_no_file_imports_itself_by_a_detour() -> None:
    """There is no circle of imports. Imports for the type checker and imports inside functions count too."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}
    after = {name: set(imported(path, names)) - {name} for name, path in names.items()}
    reached = {name: set(others) for name, others in after.items()}
    for name in names:
        for others in reached.values():
            if name in others:
                others.update(reached[name])

    assert sorted(name for name in names if name in reached[name]) == []


def imported(path: Path, names: Mapping[str, Path]) -> Iterator[str]:
    """All of our modules that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in names or node.module in names:
                    yield inner if inner in names else str(node.module)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_is_not_crowded(folder: Path) -> None:
    files = [path for path in folder.iterdir() if path.is_file()]

    assert len(files) <= FOLDER_FILES_MAX


@pytest.mark.parametrize("folder", ROOMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_says_what_belongs_there(folder: Path) -> None:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""

    assert text.count("\n") >= 2, "what is in this folder, what belongs here, and what does not"


def test_the_first_file_names_every_layer_and_every_room_of_the_core() -> None:
    text = ast.get_docstring(ast.parse((PACKAGE / "__init__.py").read_text())) or ""
    layers = {name for name in MAY_IMPORT if not name.startswith("__")}
    rooms = {room.name for room in ROOMS if room.parent == PACKAGE / "core"}

    assert sorted(name for name in layers | rooms if name not in re.findall(r"\w+", text)) == []


def test_one_file_knows_how_a_password_stands_in_a_url() -> None:
    """Code that shows a URL uses coordd.core.redaction. A second pattern would give other results."""
    texts = {
        (path, node.value)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    patterns = {path for path, text in texts if re.search(r"://.*\[\^.*@", text)}

    assert patterns == {PACKAGE / "core/redaction.py"}


def test_one_file_lists_the_words_of_secret_names() -> None:
    lists = {path for path in MODULES if re.search(r"passwd[|\"']|[|\"']passwd", path.read_text())}

    assert lists == {PACKAGE / "core/redaction.py"}


@pytest.mark.parametrize("path", EVERYTHING, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_ignore_has_its_code_and_its_reason(path: Path) -> None:
    pragma = re.compile(r"# (?:type: ignore|noqa)")
    whole = re.compile(r"# (?:type: ignore\[[a-z, -]+\]|noqa: [A-Z][A-Z0-9, ]+)(?: # | - |  # )\S")

    lines = [line for line in path.read_text().splitlines() if pragma.search(line) and "re.compile" not in line]
    assert not [line for line in lines if not whole.search(line)]


def test_names_say_something() -> None:
    vague = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}

    assert not [path for path in MODULES if path.stem in vague]


def test_the_product_stands_alone() -> None:
    """No file refers to a place outside the repository."""
    outside = ("../" + "shared", "/work" + "/")
    for folder in ("coordd", "tests", "deploy", "systemd", "docs", ".ci"):
        for path in (ROOT / folder).rglob("*"):
            if LEFT_OUT & set(path.parts):
                continue
            if path.is_file() and path.suffix in (".py", ".md", ".toml", ".service", ".conf", ".sh", ""):
                text = path.read_text(errors="replace")
                assert not [place for place in outside if place in text], path
