"""[[boot]] of coordd.toml: what is read, in which order, and what is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from plugins.written import written

from coordd.config.plugged.boot import STEPS_MAX, BootStep, read_boot


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(written(tmp_path / "site", "coordd.boot_steps", "", "mount", "warm")))


def read(text: str) -> tuple[tuple[BootStep, ...], list[str]]:
    problems: list[str] = []
    return read_boot(tomllib.loads(text)["boot"], problems.append), problems


def test_steps_have_defaults_and_come_after_those_that_they_require() -> None:
    text = (
        '[[boot]]\nname = "cache"\nstep = "warm"\nmandatory = false\nrequires = ["mount"]\ntimeout = "2m"\n'
        'memory = "1G"\n'
        'args = { path = "/data", port = 9 }\n[[boot]]\nname = "mount"\n'
    )
    cache = BootStep(
        name="cache",
        step="warm",
        mandatory=False,
        requires=("mount",),
        args={"path": "/data", "port": "9"},
        timeout_s=120.0,
        memory=2**30,
    )
    assert read(text) == ((BootStep(name="mount"), cache), [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("boot = 3", "expected [[boot]], a list of tables"),
        ("[[boot]]\nname = 'mount'\n" * (STEPS_MAX + 1), "expected at most 20 boot steps, found 21"),
        ("[[boot]]", "boot step 1: name: expected it, found nothing"),
        ("[[boot]]\nname = 'mound'", 'boot step 1: name: expected a boot step, found the text "mound", which no'),
        ("[[boot]]\nname = 'x'\nstep = 'warn'", 'boot step 1: step: expected a boot step, found the text "warn"'),
        ("[[boot]]\nname = 'mount'\n" * 2, 'boot step 2: name: there is another boot step "mount"'),
        ("[[boot]]\nname = 'mount'\ntimeout = '2h'", "boot step 1: timeout: expected 1 s to 3600 s, found 7200 s"),
        ("[[boot]]\nname = 'mount'\nmemory = '1M'", "boot step 1: memory: expected 64M to 64G"),
        ("[[boot]]\nname = 'mount'\nargs = 3", "boot step 1: args: expected a table of texts"),
        ("[[boot]]\nname = 'mount'\nwhen = 'now'", 'boot step 1: when: unknown key "when"'),
        ("[[boot]]\nname = 'mount'\nrequires = ['warn']", 'boot step "mount": requires: there is no "warn"'),
        ("[[boot]]\nname = 'mount'\nrequires = ['mount']", "boot steps require each other in a circle: mount → mount"),
        (
            "[[boot]]\nname = 'mount'\nrequires = ['warm']\n[[boot]]\nname = 'warm'\nrequires = ['mount']",
            "boot steps require each other in a circle: ",
        ),
        (
            "[[boot]]\nname = 'mount'\nrequires = ['warm']\n[[boot]]\nname = 'warm'\nmandatory = false",
            'boot step "mount": requires: it is mandatory and "warm" is not, so the start could wait for ever',
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_named(text: str, problem: str) -> None:
    steps, problems = read(text)
    assert steps == ()
    assert problems[0].startswith(problem)


@pytest.mark.parametrize(
    ("requires", "problem"),
    [
        ("coordd>=99", "bad 0.7 is for coordd>=99, and this is coordd "),
        ("coordd<0.1", "bad 0.7 is for coordd<0.1, and this is coordd "),
        ("coordd oops", 'bad 0.7 requires "coordd oops", which nobody can read'),
        ("coordd>=0.0.1,<99", ""),
        ('coordd>=99; extra == "test"', ""),
        ("coordd-other>=99", ""),
    ],
)
def test_a_package_for_another_version_of_coordd_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requires: str, problem: str
) -> None:
    monkeypatch.syspath_prepend(str(written(tmp_path / "fit", "coordd.boot_steps", "", "late", requires=requires)))
    steps, problems = read("[[boot]]\nname = 'late'")
    assert [step.name for step in steps] == ([] if problem else ["late"])
    assert [problem in said for said in problems] == ([True] if problem else [])
