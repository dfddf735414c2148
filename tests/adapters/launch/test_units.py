"""How systemd is asked for a unit, what polkit lets the daemon's user ask, and why a machine has no units."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coordd.adapters.launch import allowed, units
from coordd.cli.checking import of_machine
from coordd.config.jobfile import load_jobs
from coordd.config.settings import load
from coordd.core.jobs.job import Command, Job, Limits
from coordd.errors import UnavailableError

RULES = Path(__file__).parents[3] / "systemd/coordd-run.rules"
KEY = "0" * 32


def job(run_as: str = "", **limits: int) -> Job:
    return Job(name="j", digest="d", launch=Command(("/bin/true",)), run_as=run_as, limits=Limits(**limits))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with systemd and the package, seen by the daemon's user; root allows nobody, with 1000 tasks."""
    monkeypatch.setattr(units, "BOOTED", "/")
    monkeypatch.setattr(units, "TEMPLATE_PLACES", (str(Path(__file__).parents[3] / "systemd"),))
    monkeypatch.setattr("os.geteuid", lambda: 990)
    monkeypatch.setattr(allowed, "read", lambda: {"nobody": {"tasks": 1000}})
    return monkeypatch


def pattern() -> re.Pattern[str]:
    """The names that the polkit rule lets the daemon's user start."""
    found = re.search(r"/(\^coordd-run.*\$)/\.test", RULES.read_text())
    assert found
    return re.compile(found[1].replace("$", r"\Z"))


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("run", ["nightly@2026-11-23T02:00:00Z", "a+b#x:1", "j#" + "x" * 128, "j~hook#1"])
def test_the_template_is_started_under_a_name_that_the_rule_allows(run: str) -> None:
    asked = units.Units("auto").ask(job("nobody", tasks=7), run, 3, 2**53)
    assert asked is not None
    assert pattern().fullmatch(asked["name"]), asked["name"]
    assert len(asked["name"]) < 250
    assert asked["name"].endswith(f".3.{2**53}.{asked['key']}.service")
    assert asked["start"][1:] == ["start", "--no-block", "--no-ask-password", asked["name"]]
    assert {name: asked[name] for name in ("user", "memory", "cpu_weight", "tasks")} == {
        "user": "nobody",
        "memory": 0,
        "cpu_weight": 0,
        "tasks": 7,
    }


@pytest.mark.usefixtures("machine")
def test_each_start_has_a_key_of_its_own() -> None:
    of = units.Units("auto")
    asked = [of.ask(job("nobody"), "j#1", 0, 1) for _ in range(2)]
    assert asked[0] is not None
    assert asked[1] is not None
    assert asked[0]["key"] != asked[1]["key"]


@pytest.mark.parametrize(
    "name",
    [
        "coordd.service",
        "ssh.service",
        f"coordd-run@.{KEY}.service",
        "coordd-run@a.0.1.service",
        f"coordd-run@a.0.1.{KEY}.socket",
        f"coordd-run@a b.{KEY}.service",
        f"coordd-run@../a.{KEY}.service",
        f"xcoordd-run@a.{KEY}.service",
        f"coordd-run@a.{KEY}.service.d",
        f"coordd-run-a.{KEY}.service",
    ],
)
def test_the_rule_allows_no_other_name(name: str) -> None:
    assert not pattern().search(name)


def test_the_rule_is_for_one_user_one_action_and_one_verb() -> None:
    text = RULES.read_text()
    assert 'action.id == "org.freedesktop.systemd1.manage-units"' in text
    assert 'subject.user == "coordd"' in text
    assert 'action.lookup("verb") == "start"' in text
    assert text.count("&&") == 3
    assert "||" not in text


def test_root_makes_a_transient_unit_that_only_loses_rights_under_another_user(machine: pytest.MonkeyPatch) -> None:
    machine.setattr("os.geteuid", lambda: 0)
    machine.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    asked = units.Units("auto").ask(job("nobody"), "j@2026", 0, 1)
    assert asked is not None
    assert asked["start"][0] == "/usr/bin/systemd-run"
    assert asked["name"] == f"coordd-run-j:2026.0.1.{asked['key']}.service"
    words = asked["start"]
    assert {"--collect", "--no-block", f"--unit={asked['name']}", "--property=KillMode=mixed"} <= set(words)
    assert "--property=NoNewPrivileges=yes" in words
    assert words[-2:] == [f"j@2026.0.1.{asked['key']}", "root"]
    ours = units.Units("on").ask(job(), "j@2026", 0, 1)
    assert ours is not None
    assert "--property=NoNewPrivileges=yes" not in ours["start"]


@pytest.mark.usefixtures("machine")
def test_only_jobs_that_need_a_unit_have_one_by_default() -> None:
    for mode, who, there in (
        ("auto", job(), False),
        ("auto", job("nobody"), True),
        ("auto", job(memory=2**30), True),
        ("on", job(), True),
        ("off", job(), False),
    ):
        assert (units.Units(mode).ask(who, "j#1", 0, 1) is not None) == there


def test_why_a_job_cannot_start_here(machine: pytest.MonkeyPatch) -> None:
    assert units.Units("auto").problem(job("nobody")) == ""
    assert '[node] units is "off"' in units.Units("off").problem(job("nobody"))
    assert "is not in /etc/coordd/run_as.allow" in units.Units("auto").problem(job("daemon"))
    assert 'allows "nobody" at most 1000' in units.Units("auto").problem(job("nobody", tasks=1001))
    machine.setattr(units, "TEMPLATE_PLACES", ())
    assert "coordd-run@.service is not installed" in units.Units("auto").problem(job("nobody"))
    machine.setattr(units, "BOOTED", "/no/such/directory")
    said = "systemd is not the service manager here"
    assert units.Units("auto").problem(job("nobody")) == f"run_as needs a unit: {said}"
    assert units.Units("auto").problem(job(tasks=5)) == f"limits needs a unit: {said}"
    assert units.Units("on").problem(job()) == said
    assert units.Units("auto").problem(job()) == ""
    with pytest.raises(UnavailableError, match=said):
        units.Units("auto").ask(job("nobody"), "j#1", 0, 1)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ('run_as = "nobody"\n', 0, ""),
        ('run_as = "daemon"\n', 65, '"daemon" is not in /etc/coordd/run_as.allow'),
        ('run_as = "daemon"\ntags = ["elsewhere"]\n', 0, '"daemon" is not in /etc/coordd/run_as.allow'),
        ('run_as = "nobody"\nlimits = { tasks = 1001 }\n', 65, "at most 1000"),
    ],
)
def test_check_config_refuses_what_this_node_would(tmp_path: Path, text: str, code: int, said: str) -> None:
    (tmp_path / "jobs.d").mkdir()
    (tmp_path / "jobs.d/j.toml").write_text(f'{text}[command]\nargv = ["/bin/true"]\n')
    (tmp_path / "coordd.toml").write_text(f'[node]\njobs_dir = "{tmp_path}/jobs.d"\n')
    jobs = load_jobs(f"{tmp_path}/jobs.d", load(f"{tmp_path}/coordd.toml", {}))
    found = of_machine(jobs, load(f"{tmp_path}/coordd.toml", {}))
    assert said in " ".join([problem.message for problem in found])
    assert [problem.severity for problem in found if problem.severity == "error"] == ["error"] * (code == 65)
