"""Attempts with a tracker, on either fake, for tests."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.clusters.kubernetes import FakeKubernetes
from support.clusters.wire import FakeServer
from support.clusters.yarn import FakeYarn
from support.servers.spark import StandaloneCluster

from coordd.adapters.spark import pip_spark_home
from coordd.core.jobs.applications import labels, run_mark, yarn_tags
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Claim
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.words import GRANTED, AttemptNumber, Policy
from coordd.launching import BOOT_TRACKER
from system.lab.processes import until
from system.lab.runner_lab import Attempt, World

ROOT = Path(__file__).parents[3]
SUBMIT = ROOT / "tests/support/clusters/submit.py"
FAKES = ("yarn", "kubernetes")

# The ledger holds every lost attempt whose driver is on a cluster.
POLICY = Policy(on_lost="hold", attempts=3, delay_s=0.0)


class Place:
    """A fake cluster, and what an attempt on it is started with."""

    def __init__(self, kind: str, directory: Path, real: StandaloneCluster | FakeServer | None = None) -> None:
        """``real``: in the place of the fake of this kind."""
        self.kind = kind
        self.directory = directory
        self.fake: Any = real or (FakeYarn() if kind == "yarn" else FakeKubernetes())
        self.go = directory / "go"
        self.yarn_command = ""
        self.settle_s = 30.0
        self.submits = 1

    @property
    def master(self) -> str:
        return "yarn" if self.kind == "yarn" else f"k8s://{self.fake.url}"

    def environment(self) -> dict[str, str]:
        env = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "USER": "etl", "SUBMIT_TO": self.fake.url}
        if isinstance(self.fake, FakeYarn):
            env |= self.fake.configuration(self.directory / "conf")
        return {**env, "SUBMIT_GO": str(self.go), "PYTHONPATH": f"{ROOT}:{ROOT}/tests"}

    def job(self) -> str:
        """The file of a job whose driver runs here."""
        return '[spark]\napplication = "local:///opt/app.py"\ndeploy_mode = "cluster"\n'

    def conf(self, run: str, attempt: int, token: int) -> str:
        """The properties file of an attempt, as the daemon writes it."""
        if self.kind == "yarn":
            return f"spark.yarn.tags={','.join(yarn_tags('prod', run, attempt, token))}\n"
        marks = labels("prod", run, attempt, token).items()
        return "".join(f"spark.kubernetes.driver.label.{key}={value}\n" for key, value in marks)

    def spark_submit(self) -> str:
        path = self.directory / "spark-submit"
        if not path.exists():
            path.write_text(
                f'#!/bin/sh\n[ -z "$SUBMIT_REAL" ] || exec {pip_spark_home()}/bin/spark-submit "$@"\n'
                f'exec {sys.executable} {SUBMIT} "$@"\n'
            )
            path.chmod(0o755)
        return str(path)

    def submitted_by_another(self, run: str, attempt: int, token: int) -> str:
        """An application of this run appears."""
        if isinstance(self.fake, FakeYarn):
            return self.fake.submit("nightly", ",".join(yarn_tags("prod", run, attempt, token)))
        name: str = self.fake.submit(f"{run_mark('prod', run)}-{attempt}x", labels("prod", run, attempt, token))
        return name

    def fail(self, ident: str) -> None:
        if isinstance(self.fake, FakeYarn):
            self.fake.finish(ident, "FAILED", "FINISHED", "User class threw exception: boom")
        else:
            self.fake.finish(ident, 7, says="boom\n")

    def stopped(self, where: str) -> bool:
        return Path(f"{self.go}.{where}").exists()


class Cluster:
    """A ledger, a launcher and a fake cluster."""

    def __init__(self, world: World, place: Place) -> None:
        self.world = world
        self.place = place

    def start(
        self,
        run: str = "nightly#1",
        *,
        env: dict[str, str] | None = None,
        spark: tuple[str, ...] = (),
        conf: str = "",
        **changes: Any,
    ) -> Attempt:
        """Claim the next attempt of the run, and start its runner, as a daemon would."""
        world, place = self.world, self.place
        row = world.ledger.run(run)
        number = AttemptNumber(row.attempt if row is not None else 0)
        of = Registration(run, "nightly", "digest", POLICY, 0.0, scheduled=False)
        nonce = f"nonce-{os.urandom(8).hex()}"
        lease_s = changes.get("lease_s", 60.0)

        def granted() -> Answer | None:
            answer = world.ledger.ask(Claim(of=of, attempt=number, nonce=nonce, node="edge-1", lease_s=lease_s))
            return answer if answer.word == GRANTED else None

        grant = until(granted)
        assert grant is not None
        directory = world.launcher.directory(run, number, grant.token)
        os.makedirs(directory, exist_ok=True)
        secrets = Path(directory, "secrets.properties")
        secrets.write_text(place.conf(run, number, int(grant.token)) + conf)
        submit = [*(spark or (place.spark_submit(),)), "--name", "nightly", "--properties-file", str(secrets)]
        options = {
            "mark": run_mark("prod", run), "master": place.master, "settle_s": place.settle_s, "poll_max_s": 0.2,
            "try_again_s": 0.2, "submits": place.submits, "submit_again_s": 0.2, "yarn_command": place.yarn_command,
        }  # fmt: skip
        tracker = [
            sys.executable,
            "-I",
            "-S",
            "-E",
            "-c",
            BOOT_TRACKER,
            json.dumps(options),
            "--",
            *submit,
            "local:///opt/app.py",
        ]
        spec, attempt = world.spec(tracker, **{**changes, "tracked": True})
        attempt.run, attempt.directory = run, directory
        spec |= {"run": run, "job": "nightly", "attempt": int(number), "token": int(grant.token), "nonce": nonce}
        spec |= {"digest": "digest", "policy": POLICY.pack(), "args": "{}", "scheduled": False, "directory": directory}
        spec["env"] = {**spec["env"], **place.environment(), **self._of(spec), **(env or {})}
        assert world.launcher.start(spec) == directory
        return attempt

    def _of(self, spec: dict[str, Any]) -> dict[str, str]:
        names = {"RUN": "run", "ATTEMPT": "attempt", "TOKEN": "token"}
        return {f"COORDD_{name}": str(spec[key]) for name, key in names.items()}

    def log(self, attempt: Attempt) -> str:
        path = Path(attempt.directory, "log")
        return path.read_text() if path.exists() else ""

    def alive(self) -> list[str]:
        found: list[str] = self.place.fake.alive()
        return found

    def one(self) -> str:
        """The id of the only application that was ever submitted, once there is one."""
        until(self.alive)
        fake = self.place.fake
        (ident,) = fake.apps if isinstance(fake, FakeYarn) else fake.pods
        return ident


@contextmanager
def cluster_on(world: World, kind: str) -> Iterator[Cluster]:
    directory = world.path / "place"
    directory.mkdir()
    place = Place(kind, directory)
    try:
        yield Cluster(world, place)
    finally:
        place.fake.close()
