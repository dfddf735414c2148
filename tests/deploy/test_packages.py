"""What the packages are made of: the lock, the man pages, the completions, one version, and the scripts of dpkg."""

from __future__ import annotations

import re
import subprocess
import tomllib
import zipfile
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import coordd
from coordd.adapters.ledger.sqlite_rows import MIGRATIONS
from coordd.cli.coordctl import program as coordctl
from coordd.cli.coordd import program as daemon
from packages import deb, lock, manual, rpm, share, tree, wheelhouse

ROOT = Path(__file__).parents[2]
LOCK = """\
rich==15.0.0 \\
    --hash=sha256:{a}
    # via coordd (pyproject.toml)
pygments==2.21.0 \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
    # via
    #   pytest
    #   rich
pytest==9.2.0 \\
    --hash=sha256:{b}
    # via coordd (pyproject.toml)
""".format(a="a" * 64, b="b" * 64)


def project(tmp_path: Path, dependencies: str, locked: str = LOCK) -> Path:
    (tmp_path / "requirements.lock").write_text(locked)
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\ndependencies = {dependencies}\noptional-dependencies = {{ test = ["pytest>=8"] }}\n'
    )
    return tmp_path


# ---- the lock


def test_only_what_is_needed_to_run_is_taken_from_the_lock(tmp_path: Path) -> None:
    found = lock.needed((), project(tmp_path, '["rich>=13"]'))

    assert [(one.name, one.version) for one in found] == [("pygments", "2.21.0"), ("rich", "15.0.0")]
    assert found[0].hashes == ("a" * 64, "b" * 64)


def test_an_extra_brings_its_own(tmp_path: Path) -> None:
    assert "pytest" in [one.name for one in lock.needed(("test",), project(tmp_path, '["rich>=13"]'))]


def test_a_lock_without_a_dependency_is_named(tmp_path: Path) -> None:
    with pytest.raises(lock.LockError, match="expected click"):
        lock.needed((), project(tmp_path, '["rich>=13", "click>=8.1"]'))


def test_the_package_has_no_test_tool_and_no_spark() -> None:
    names = {one.name for one in lock.needed()}

    assert {"trio", "msgspec", "aio-pika", "uvloop", "idna"} <= names
    assert not names & {"pytest", "celery", "hypothesis", "mypy", "pyspark", "py4j", "setuptools"}
    assert all(one.hashes for one in lock.needed())


# ---- one version


def test_the_version_is_written_once() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert asked["project"]["dynamic"] == ["version"]
    assert asked["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "coordd.__version__"}

    spelt = f'"{coordd.__version__}"'
    places = [ROOT / "pyproject.toml", *[path for top in ("coordd", "deploy") for path in (ROOT / top).rglob("*.py")]]
    assert [path for path in places if spelt in path.read_text()] == [ROOT / "coordd/__init__.py"]


@pytest.mark.parametrize(("program", "name"), [(daemon, "coordd"), (coordctl, "coordctl")])
def test_both_programs_say_it(program: click.Group, name: str) -> None:
    said = CliRunner().invoke(program, ["--version"], prog_name=name).stdout

    assert said == f"{name} {coordd.__version__}\n"


def test_a_wheel_brings_the_programs_of_the_packages() -> None:
    """The unit of a run starts coordd-run, wherever coordd comes from."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {name: f"{module}:main" for name, module in tree.PROGRAMS.items()}


# ---- man pages and completions


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("share")
    share.write(to)
    return to


def commands(group: click.Group, prefix: str) -> list[str]:
    found = []
    for name, command in group.commands.items():
        if not command.hidden:
            inner = f"{prefix} {name}"
            found += commands(command, inner) if isinstance(command, click.Group) else [inner]
    return found


def shown(page: Path) -> str:
    """The page as a reader without man sees it: roff's requests and escapes are gone."""
    text = re.sub(r"(?m)^\.(?:SH|SS|TP|PP|TH|I|B|nf|fi|sp)\b ?", "", page.read_text())
    return re.sub(r"\\f[BIR]|\\&", "", text).replace("\\-", "-").replace("\\(dq", '"').replace("\\e", "\\")


@pytest.mark.parametrize(("program", "name"), [(daemon, "coordd"), (coordctl, "coordctl")])
def test_a_man_page_has_every_command_with_its_options(made: Path, program: click.Group, name: str) -> None:
    text = shown(made / f"man/man1/{name}.1")

    for command in commands(program, name):
        assert f'"{command} ' in text, command
    for option in ("--version", "--help"):
        assert option in text
    assert ("--as-service" in text) == (name == "coordd")
    assert ("--stop-after-failures" in text) == (name == "coordctl")
    assert f"coordd {coordd.__version__}" in text


def test_the_page_of_the_configuration_is_the_example(made: Path) -> None:
    text = shown(made / "man/man5/coordd.toml.5")

    for line in (ROOT / "deploy/coordd.example.toml").read_text().splitlines():
        assert line in text


def test_no_line_of_a_page_is_taken_for_a_request(made: Path) -> None:
    requests = re.compile(r"\.(TH|SH|SS|TP|PP|nf|fi|sp|B|I)\b")
    for page in made.glob("man/*/*"):
        wrong = [line for line in page.read_text().splitlines() if line[:1] in "'." and not requests.match(line)]
        assert [line for line in wrong if line] == []


def test_a_line_that_looks_like_a_request_is_text() -> None:
    @click.group(help=".SO a 'quoted' \\e word\n\n\b\n.kept  as it is\n'and this")
    def program() -> None:
        """Do nothing."""

    page = manual.page(program, "p", "1", "about")
    assert "\\&.SO a 'quoted' \\ee word" in page
    assert "\\&.kept  as it is\n\\&'and this\n" in page


@pytest.mark.parametrize("shell", sorted(share.PLACES))
def test_a_completion_asks_the_program(made: Path, shell: str) -> None:
    for name, _, _ in share.PROGRAMS:
        text = (made / share.PLACES[shell].format(name)).read_text()
        assert f"_{name.upper()}_COMPLETE={shell}_complete" in text


def test_bash_takes_the_completion(made: Path) -> None:
    script = f"set -e; source {made}/bash-completion/completions/coordctl; complete -p coordctl"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "coordctl" in done.stdout


def test_the_list_of_what_is_inside_agrees_with_the_lock() -> None:
    listed = share.sbom(lock.needed())

    assert [one["purl"] for one in listed["components"]] == [
        f"pkg:pypi/{one.name}@{one.version}" for one in lock.needed()
    ]
    assert listed["metadata"]["component"]["version"] == coordd.__version__


# ---- wheel and scripts


def test_the_wheel_carries_the_files_of_the_package(tmp_path: Path) -> None:
    built = wheelhouse.wheel(tmp_path)
    with zipfile.ZipFile(built) as archive:
        names = [name.partition(".data/data/")[2] for name in archive.namelist() if ".data/data/" in name]

    assert built.name == f"coordd-{coordd.__version__}-py3-none-any.whl"
    for name in (
        "share/coordd/coordd.example.toml",
        "share/coordd/jobs.d/nightly-sales.toml",
        "share/coordd/systemd/coordd.service",
        "share/coordd/systemd/sysusers.d-coordd.conf",
        "share/coordd/systemd/tmpfiles.d-coordd.conf",
        "share/coordd/systemd/coordd-run@.service",
        "share/coordd/polkit/coordd.rules",
        "share/coordd/polkit/coordd-run.rules",
        "share/coordd/sbom.cdx.json",
        "share/coordd/pipeline/spark-pipeline.yml",
        "share/coordd/watch/coordd.rules.yml",
        "share/doc/coordd/runbook.md",
        "share/man/man1/coordctl.1",
        "share/man/man1/coordd.1",
        "share/man/man5/coordd.toml.5",
        "share/bash-completion/completions/coordctl",
        "share/zsh/vendor-completions/_coordctl",
        "share/fish/vendor_completions.d/coordctl.fish",
    ):
        assert name in names


@pytest.mark.parametrize("name", ["preinst", "postinst", "prerm", "postrm"])
def test_the_scripts_of_the_package_are_shell(name: str) -> None:
    text = deb.script(name, "1.2.3")

    subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    assert "@" not in text.replace('"$@"', "").replace("coordd-run@", "")
    assert "1.2.3" in text
    assert f"-gt {len(MIGRATIONS)} ]" in text


def test_the_scripts_of_the_rpm_know_version_and_schema(tmp_path: Path) -> None:
    text = rpm.specification("1.2.3", 2, tmp_path)

    assert "@" not in text.replace("coordd-run@", "")
    assert f"-gt {len(MIGRATIONS)} ]" in text
    assert "Version: 1.2.3\nRelease: 2\n" in text
