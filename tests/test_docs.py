"""The documents as a test: tables agree with the code, links have a target, and every command and key exists."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from simulator import mutants

from coordd.cli.coordctl import program as coordctl
from coordd.cli.coordd import program as coordd
from coordd.config import jobkeys
from coordd.config.jobfile import load_job
from coordd.config.settings import SECTIONS, read_config
from coordd.core.ledger.words import STATES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
TEST = re.compile(r"tests/[\w/]+\.py(?:::(\w+))?")
BLOCK = re.compile(r"<!-- table: [a-z-]+ -->")

# Settings and keys that the documents promise. The program must say of a missing one that it is not built yet, and
# never that it is unknown.
PROMISED = {
    "node": "name tags state_dir runtime_dir jobs_dir budget",
    "cluster": "name bus ledger bus_password_file ledger_password_file tls_ca tls_cert tls_key keyring unsigned mingle "
    "heartbeat_interval election_timeout mingle_timeout lease renew_interval ledger_timeout kill_grace",
    "spark": "submit master env env_file properties_file",
    "control": "socket operator_group viewer_group",
    "history": "keep logs_keep journal_keep journal_sink log_sink",
    "metrics": "listen textfile",
    "mirror": "url",
}
PROMISED_TOP = (
    "description owner schedule timezone start end jitter blackout misfire start_within expect_within overlap on_lost "
    "placement tags priority pool concurrency rate timeout lease params after spark command run_as retry breaker check "
    "trigger sink queue_max queue_keep expand dedupe"
)
PROMISED_IN = {
    "spark": "application args master deploy_mode conf py_files files jars name keytab principal proxy_user env "
    "properties_file",
    "command": "argv",
    "retry": "attempts relaunches delay backoff never_on",
}


@cache
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", DOCS / "texts" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- tables


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_tables_are_those_of_the_code(page: Path) -> None:
    text = page.read_text()

    assert tables().renew(text) == text, "run: python docs/texts/tables.py"
    assert len(tables().BLOCK.findall(text)) == len(BLOCK.findall(text)), "a table without its end"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_table_is_torn(page: Path) -> None:
    """After an empty line, rows are raw text until the next table's head."""
    lines = [*FENCE.sub("", page.read_text()).splitlines(), ""]
    starts = [n for n, line in enumerate(lines) if line.startswith("|") and not (n and lines[n - 1].startswith("|"))]
    assert [lines[n] for n in starts if not re.fullmatch(r"\|[-:| ]+\|", lines[n + 1])] == []


def test_every_table_is_in_a_document() -> None:
    shown = {name for page in PAGES for _, name, _ in tables().BLOCK.findall(page.read_text())}

    assert shown == set(tables().TABLES)


def test_what_is_not_described_is_an_error() -> None:
    with pytest.raises(KeyError, match="new_column"):
        tables().told(["run", "new_column"], {"run": "the key"})
    with pytest.raises(KeyError, match="gone"):
        tables().told(["run"], {"run": "the key", "gone": "a column that was"})


# ---- links and references


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    for line in re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", line.strip().lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, 0) + 1
    return {anchor if n == 0 else f"{anchor}-{n}" for anchor, count in found.items() for n in range(count)}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        to = (page.parent / name).resolve() if name else page
        assert to.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(to.read_text()), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_test_that_is_named_exists(page: Path) -> None:
    for match in TEST.finditer(page.read_text()):
        path = ROOT / match.group().partition("::")[0]
        assert path.is_file(), match.group()
        if match.group(1):
            assert f"def {match.group(1)}(" in path.read_text(), match.group()


# Rows of the mission that are about the code alone: how it is put together.
OF_THE_CODE = {21}


def test_the_mission_has_every_row_with_its_tests() -> None:
    page = (DOCS / "mission.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| \d", line)]

    assert [int(row[0]) for row in rows] == list(range(1, 42))
    for number, _, _, state, shown in rows:
        assert state == "works", number
        tests = [match.group() for match in TEST.finditer(shown)]
        assert all("::" in test for test in tests), f"row {number} names a file, not a test"
        real = [test for test in tests if test.startswith(("tests/system/", "tests/cli/"))]
        assert real or int(number) in OF_THE_CODE, f"row {number}: a test of the programs themselves"


def test_the_mutants_and_properties_of_each_rule_exist() -> None:
    page = (DOCS / "policies.md").read_text()
    table = page.partition("## How each rule is tested")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    known = {mutant.name: mutant.caught_as.split() for mutant in mutants.MUTANTS}
    verdicts = "".join(path.read_text() for path in (ROOT / "tests/simulator/judging").rglob("*.py"))
    for rule, _, properties, broken, _ in rows:
        names = re.findall(r"\b[A-Z]+\d*\b", properties)
        assert properties.startswith("none") == (not names), rule
        for name in names:
            assert re.search(rf'f?"{name} ', verdicts), f"{rule}: the judge knows no property {name}"
        for mutant in [] if broken == "none" else broken.split("; "):
            assert mutant in known, f"{rule}: there is no mutant {mutant!r}"


def test_the_flows_name_real_steps() -> None:
    """In docs/architecture.md a step is written as file: Class.method."""
    flows = (DOCS / "architecture.md").read_text().partition("## Flows")[2].partition("## Decisions")[0]
    steps = re.findall(r"(\w[\w/]+\.py): (\w+)\.(\w+)", flows)

    assert len(steps) > 20
    for file, name, method in steps:
        text = (ROOT / "coordd" / file).read_text()
        assert re.search(rf"^class {name}\b", text, re.MULTILINE), f"{file}: {name}"
        assert re.search(rf"^    (async )?def {method}\b", text, re.MULTILINE), f"{file}: {name}.{method}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_file_of_ours_that_is_named_exists(page: Path) -> None:
    for text in CODE.findall(FENCE.sub("", page.read_text())):
        for path in re.findall(r"(?<![\w/])(?:core|services|adapters|runner)/\w+(?:\.py)?(?!\S*[/*])", text):
            found = ROOT / "coordd" / path
            assert found.exists() or found.with_suffix(".py").exists(), path
        for path in re.findall(r"(?<![\w/])(?:deploy|systemd|tests|docs|coordd)/[\w./-]+\w", text):
            assert (ROOT / path).exists(), path


# ---- commands


def commands(page: Path) -> Iterator[str]:
    """Every shell command line in a page: text after a prompt, and code that begins with
    the name of one of our programs.
    """
    text = page.read_text()
    for language, body in FENCE.findall(text):
        if language == "console":
            yield from re.findall(r"^[$#] (.*)$", body.replace("\\\n", " "), re.MULTILINE)
    yield from [code for code in CODE.findall(FENCE.sub("", text)) if re.match(r"(coordctl|coordd|make) \S", code)]


def calls(line: str) -> Iterator[list[str]]:
    """The words of each call of our programs in a line of shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word and set(word) <= set(";&|"):
            if words and words[0] in ("coordctl", "coordd", "make"):
                yield words
            words = []
        else:
            words.append(word)


def check_call(words: list[str]) -> None:
    """Assert that our programs accept a command line with its options."""
    command: click.Command = coordctl if words[0] == "coordctl" else coordd
    at = 1
    while isinstance(command, click.Group) and at < len(words):
        if words[at].startswith("-"):
            at += 1 if words[at] in ("-h", "--help", "--version") else 2
            continue
        assert words[at] in command.commands, f"no command {' '.join(words[: at + 1])}"
        command = command.commands[words[at]]
        at += 1
    options = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
    for word in words[at:]:
        if word == "--":
            return
        if word.startswith("-") and word != "-":
            assert word.partition("=")[0] in options | {"--help"}, f"no option {word} of {' '.join(words[:at])}"


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_command_exists(page: Path) -> None:
    for line in commands(page):
        for words in calls(line):
            if words[0] == "make":
                named = [word for word in words[1:] if "=" not in word]
                assert set(named) <= make_targets(), line
            else:
                check_call(words)


@pytest.mark.parametrize(
    "line", ["coordctl run lst", "coordctl run show --al X", "coordd chek-config", "coordctl node drain --wiat"]
)
def test_a_command_that_is_not_there_is_noticed(line: str) -> None:
    with pytest.raises(AssertionError, match=r"no (command|option)"):
        check_call(line.split())


def test_the_documents_name_enough_commands_to_mean_something() -> None:
    named = [words for page in PAGES for line in commands(page) for words in calls(line)]

    assert len(named) > 40
    assert {words[0] for words in named} == {"coordctl", "coordd", "make"}


# ---- the meanings of words in the code


@pytest.mark.parametrize("state", STATES)
def test_the_runbook_has_every_state_in_which_a_run_may_be_found(state: str) -> None:
    normal = {"received", "started", "success", "revoked", "retry"}
    headings = " ".join(re.findall(r"^### (.*)$", (DOCS / "runbook.md").read_text(), re.MULTILINE))

    assert state in normal or state in headings


def test_log_events_that_are_named_are_logged() -> None:
    source = "".join([path.read_text() for path in (ROOT / "coordd").rglob("*.py")])
    areas = "ledger|wall_clock|node|runner|journal|state|clock|token|watchdog|job|launch|lease|config|message"
    for page in PAGES:
        for event in re.findall(rf"`((?:{areas})\.[a-z]+_?[a-z_]*)`", page.read_text()):
            if event in tables()._METHODS or event.rpartition(".")[2] in ("db", "json", "service", "list", "py", "log"):
                continue
            prefix, _, last = event.partition(".")
            known = f'"{event}"' in source or (prefix == "node" and last in ("joined", "left", "lost"))
            assert known, f"{page.name}: nothing logs {event}"


# ---- settings and keys


def uncommented(text: str) -> str:
    """The example with the commented-out settings switched on."""
    return re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)


def test_the_example_holds_every_setting_with_its_default(tmp_path: Path) -> None:
    file = tmp_path / "coordd.toml"
    file.write_text(uncommented((ROOT / "deploy" / "coordd.example.toml").read_text()))
    config, problems = read_config(str(file), {})

    assert problems == []
    assert config is not None
    tables = tomllib.loads(file.read_text())
    assert tables.pop("pools") == {}
    for section, table in tables.items():
        assert set(table) == set(SECTIONS[section].__struct_fields__), section
        for key in set(table) - {"name"}:
            assert getattr(getattr(config, section), key) == getattr(SECTIONS[section](), key), f"[{section}] {key}"


@pytest.mark.parametrize("section", PROMISED)
def test_every_setting_that_was_promised_is_known(section: str) -> None:
    assert set(PROMISED[section].split()) <= set(SECTIONS[section].__struct_fields__)


def refusals(tmp_path: Path, table: str) -> list[str]:
    config, _ = read_config(None, {})
    assert config is not None
    file = tmp_path / "one.toml"
    file.write_text(table)
    return [str(problem) for problem in load_job(str(file), config)[1]]


@pytest.mark.parametrize("key", PROMISED_TOP.split())
def test_every_job_key_that_was_promised_is_known_or_says_that_it_is_not_there_yet(tmp_path: Path, key: str) -> None:
    said = refusals(tmp_path, f'{key} = "x"\n')

    assert not [text for text in said if "unknown key" in text]
    if key not in jobkeys.TOP:
        assert [text for text in said if "not available in this version" in text]


@pytest.mark.parametrize(("section", "key"), [(s, k) for s, keys in PROMISED_IN.items() for k in keys.split()])
def test_every_key_of_a_section_that_was_promised_is_known(tmp_path: Path, section: str, key: str) -> None:
    assert not [text for text in refusals(tmp_path, f'[{section}]\n{key} = "x"\n') if "unknown key" in text]


def test_a_key_that_nobody_promised_is_unknown(tmp_path: Path) -> None:
    assert [text for text in refusals(tmp_path, 'shedule = "x"\n') if "unknown key" in text]


def job_tables() -> Iterator[Any]:
    for page in PAGES:
        for number, (language, body) in enumerate(FENCE.findall(page.read_text())):
            if language == "toml":
                yield pytest.param(body, id=f"{page.name}-{number}")
    for path in sorted((ROOT / "deploy" / "jobs.d").glob("*.toml")):
        yield pytest.param(path.read_text(), id=path.name)


@pytest.mark.parametrize("body", list(job_tables()))
def test_every_job_that_is_shown_is_a_job(tmp_path: Path, body: str) -> None:
    assert [text for text in refusals(tmp_path, body) if "warning" not in text] == []


def test_the_image_runs_as_a_user_of_its_own_and_carries_no_test_tools() -> None:
    final = (ROOT / "deploy/Dockerfile").read_text().rpartition("\nFROM ")[2]
    words = [line.split() for line in final.splitlines() if line and not line.startswith("#")]
    user = next(line[1] for line in words if line[0] == "USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "a kubelet that may start no root needs a number"
    uid, gid = user.split(":")
    assert f"groupadd --system --gid {gid} coordd" in final
    assert f"useradd --system --uid {uid} --gid {gid} " in final
    manifest = (ROOT / "deploy/kubernetes/coordd.yaml").read_text()
    assert f"runAsNonRoot: true, runAsUser: {uid}, runAsGroup: {gid} }}" in manifest
    assert set(re.findall(r"chown (\S+)", manifest)) == {user}
    assert words.index(["USER", user]) < next(place for place, line in enumerate(words) if line[0] == "ENTRYPOINT")
    assert "requirements.lock" not in final, "the lock holds the test tools too"
    assert '"coordd[spark,uvloop]"' in final
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = extras["optional-dependencies"]
    shipped = [*extras["dependencies"], *optional["spark"], *optional["uvloop"]]
    assert not [need for need in shipped if need.startswith(("pytest", "celery", "mypy", "ruff", "hypothesis"))]


# ---- the map of rooms


def test_the_map_names_every_room() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = {str(path.parent.relative_to(ROOT)) for path in (ROOT / "coordd").rglob("*.py")} - {"coordd", "coordd/core"}

    assert sorted(room for room in rooms if f"`{room}`" not in text) == []


@pytest.mark.parametrize(("title", "most"), [("a note on a run", 7), ("a limit", 7)])
def test_an_example_changes_few_files(title: str, most: int) -> None:
    """A capability must not need more files of coordd than this number. Tests and pages do not count."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition(f"## An example: {title}\n")[2].partition("\n## ")[0]
    changed = re.findall(r"^\| (?:`(coordd/[^`]+)`|a new \w+ `\w+` in `(coordd/[^`]+)`) \|", text, re.MULTILINE)

    assert 1 < len(changed) <= most
