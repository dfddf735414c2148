"""What a program under run_as may reach: nothing of the daemon, of the runner, of the supervisor, of other users."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from coordd.core.jobs.job import run_tag
from system.lab.systemd_lab import SOURCE
from system.systemd.run_units import Runs, running
from system.systemd.test_units_daemon import CLIENT, ENVIRONMENT, PYTHON

CANARY = "CANARY-7f3a"
HERE = f"{SOURCE}/tests/system/systemd/ways.py"
FACTS = "/usr/share/facts.json"
TRY = f'[command]\nargv = ["/bin/sh", "-c", "until [ -e {FACTS} ]; do sleep 0.05; done; {PYTHON} {HERE} {FACTS}"]\n'
JOBS = {"try": 'run_as = "etl"\n' + TRY, "ours": TRY, "wait": '[command]\nargv = ["/bin/sleep", "1000"]\n'}

# What a job of the daemon's own user gets: the test would see it if another user got it.
OURS = ("the keyring", "the ledger's password")


def with_secrets(runs: Runs) -> None:
    """The daemon gets a canary in each way in which it may get a secret."""
    etc = runs.lab.root / "etc"
    for name in ("keys.toml", "ledger.password"):
        (etc / f"coordd/{name}").write_text(CANARY)
        runs.lab.run("sh", "-c", f"chown root:coordd /etc/coordd/{name}; chmod 0640 /etc/coordd/{name}")
    (etc / "secret.env").write_text(f"SITE_SECRET={CANARY}\n")
    (etc / "secret.env").chmod(0o600)
    credential = "LoadCredential=ledger_password:/etc/coordd/ledger.password"
    runs.drop_in("secret", f"EnvironmentFile=/etc/secret.env\n{credential}")


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    with running(JOBS, with_secrets) as service:
        yield service


def tried(runs: Runs, job: str, only: tuple[str, ...] = ()) -> dict[str, str]:
    """What a run of the job has got by each way, or by those of ``only``."""
    (runs.lab.root / FACTS[1:]).unlink(missing_ok=True)
    run = runs.trigger(job, "a")
    directory = runs.lab.run("sh", "-c", f"ls -d /run/coordd/runs/* | grep {run_tag(run)}")
    adopted = json.loads(runs.lab.run("sh", "-c", f"grep adopted {directory}/facts | tail -1"))
    units = [unit for unit in runs.units() if f"{job}_a." in unit]
    facts = {
        "daemon": int(runs.main_pid),
        "runner": adopted["pid"],
        "supervisor": int(runs.lab.show(units[0], "MainPID")["MainPID"]) if units else adopted["watcher"],
        "directory": directory,
        "uid": int(runs.lab.run("id", "-u", "coordd")),
        "unit": f"coordd-run@x.0.1.{'0' * 32}.service",
        "own": units[0] if units else "coordd.service",
        "ctl": ["env", *[f"{name}={value}" for name, value in ENVIRONMENT.items()], PYTHON, "-c", CLIENT],
        "run": "wait#a",
        "only": only,
    }
    fresh = runs.lab.root / "usr/share/facts.new"
    fresh.write_text(json.dumps(facts))
    fresh.rename(fresh.with_name("facts.json"))
    runs.ended(run)
    said = next(line for line in runs.output(run) if line.startswith("ways "))
    got: dict[str, str] = json.loads(said.removeprefix("ways "))
    return got


def test_another_user_reaches_nothing_of_ours(runs: Runs) -> None:
    runs.trigger("wait", "a")
    got = tried(runs, "try")
    assert len(got) >= 20
    assert {name: what for name, what in got.items() if not what.startswith("refused: ")} == {}
    assert runs.is_active
    assert runs.run_of("wait#a")["state"] == "started"


def test_the_daemons_own_user_would_be_seen(runs: Runs) -> None:
    got = tried(runs, "ours", OURS)  # the others would succeed too: it would stop its own runner
    assert [name for name in OURS if CANARY not in got[name]] == []
