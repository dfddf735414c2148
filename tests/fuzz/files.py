"""Files that people write: job files, the configuration, the environment, the keyring.

The first byte of an input says which kind it is.
"""

from __future__ import annotations

import json
import os
import random
import socket
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import msgspec
from support.samples import EVERY_KEY
from support.small_cluster import EPOCH, SETTINGS

from coordd.config import jobfile, keyring
from coordd.config.sections import Config, NodeConfig
from coordd.config.settings import read_config
from coordd.config.tomlfile import Problem
from coordd.core.jobs.arguments import packed
from coordd.core.jobs.job import Job
from coordd.core.jobs.schedule import fires_between, next_fire
from coordd.core.node.node import Node
from coordd.core.wire.envelope import ACCEPT, RETIRED, SIGN, Key, Keyring
from coordd.errors import ConfigError, RefusedError, UnavailableError
from coordd.launching import LaunchBuilder
from coordd.services.views.objects import job_view
from fuzz.mutate import Pool, distort, pick
from fuzz.trial import Try, check, scratch

JOB, CONFIG, ENVIRONMENT, KEYRING, JOB_BESIDE_ANOTHER = range(5)

DEPLOY = Path(__file__).parents[2] / "deploy"

# Maximum length of the messages about one file.
SAID_BYTES_MAX = 64 * 1024

SMALL = ('[command]\nargv = ["/bin/true"]\n', 'schedule = "every 6h"\n[spark]\napplication = "/opt/a.py"\n')
SETTINGS_FILE = """
[node]
name = "edge-1"
tags = ["gpu"]
budget = { client = 2, cluster = 20 }
[cluster]
name = "prod"
bus = ["amqps://coordd@mq-1:5671/", "amqps://coordd@mq-2:5671/"]
ledger = "rediss+sentinel://s-1:26379,s-2:26379/coordd/0"
unsigned = true
lease = 60
renew_interval = 5
[spark]
env = { JAVA_HOME = "/usr" }
[history]
keep = "30d"
[sink.q]
to = "amqps://coordd@mq-1/v?exchange=x&routing_key=k"
on = "failure"
jobs = ["a*"]
delay = "5s"
"""
VARIABLES = (
    "NODE_NAME=a",
    "CLUSTER_LEASE=60",
    "NODE_TAGS=a,b",
    "NODE_BUDGET={ client = 1 }",
    "CLUSTER_MINGLE=true",
    "CLUSTER_BUS=amqps://u:p@h:5671/v?x=1",
    "CLUSTER_LEDGER=rediss://h:6379/0",
    "HISTORY_KEEP=1d",
    "SPARK_ENV={ A = '1' }",
)
WORDS = (
    b"[[key]]", b"[spark]", b'"""', b"'''", b"=", b" = {}", b"[", b"\n", b"#", b"nan", b"-inf", b"1e999", b"0x",
    b"1979-05-27T07:32:00Z", b"25:61:61", b"9999-12-31", b"0001-01-01", b'"* * * * *"', b'"0 0 31 2 *"', b'"every 1s"',
    b'"@daily"', b'"1w"', b'"9e9d"', b"a.b.c.d", b"\\u0000", b'"(a+)+$"', b'"America/Sao_Paulo"', b'"../x"',
    b'"spark.x"', b"password=x", b"://", b"[[sink]]", b'"redis://h/1?stream=s"', b'"file:///x/"',
)  # fmt: skip


# The keys that name other jobs: a job that is alone has no problem with them.
JOINING = ("after", "trigger.jobs", "trigger.route")


class World:
    """A directory with a good job file in it, and room for one more file."""

    def __init__(self, root: str) -> None:
        self.config = Config(node=NodeConfig(name="edge-1", jobs_dir=f"{root}/jobs"))
        node = Node(hostname="a", pid=1, incarnation="1-a", settings=SETTINGS, clock_mark=0, rng=random.Random(1))
        self.builder = LaunchBuilder(self.config, node, lambda *_: root, cast(Any, None))
        self.path = f"{root}/file.toml"
        self.jobs_dir = f"{root}/jobs"
        os.mkdir(self.jobs_dir)
        Path(f"{self.jobs_dir}/good.toml").write_text(SMALL[0])
        self.good = jobfile.load_jobs(self.jobs_dir, self.config).jobs["good"]
        self.job_path = f"{self.jobs_dir}/j.toml"

    async def attempt(self, data: bytes) -> str:
        """One file, or one variable."""
        kind, text = data[0] % 5 if data else JOB, data[1:]
        if kind in (JOB, JOB_BESIDE_ANOTHER):
            return self._job(text, beside=kind == JOB_BESIDE_ANOTHER)
        if kind == ENVIRONMENT:
            return self._environment(text)
        return self._settings(text) if kind == CONFIG else self._keys(text)

    def _job(self, text: bytes, *, beside: bool) -> str:
        Path(self.job_path).write_bytes(text)
        job, problems = jobfile.load_job(self.job_path, self.config)
        self._told(job, problems)
        if beside:
            self._left_alone(job, problems)
        if job is None:
            return "refused"
        table = tomllib.loads(text.decode())
        said = (
            table.get("description", ""),
            table.get("owner", ""),
            table.get("priority", 0),
            table.get("overlap", "forbid"),
        )
        check((job.description, job.owner, job.priority, job.overlap) == said, "the job is not what its file says")
        self._used(job)
        return "accepted"

    def _left_alone(self, job: Job | None, problems: list[Problem]) -> None:
        """The job in the other file is unchanged. In addition only what joins jobs is told."""
        both = jobfile.load_jobs(self.jobs_dir, self.config)
        told = both.problems.get("j", [])
        joining = told[len(problems) :]
        fits = job is not None and not any(problem.severity == "error" for problem in joining)
        check(
            both.jobs == {"good": self.good, **({"j": job} if fits else {})},
            "a bad file changes another job, or half of it counts",
        )
        check(
            told[: len(problems)] == problems and both.problems.keys() <= {"j"},
            "the same file has other problems when it is read again",
        )
        check(all(problem.key in JOINING for problem in joining), "one file more brings a problem of this file alone")

    def _used(self, job: Job) -> None:
        """An accepted job can be shown, packed, planned and started."""
        msgspec.json.encode(job)
        job.policy().pack()
        packed(job.params)
        if job.schedule is not None:
            after = next_fire(job.schedule, EPOCH)
            check(after is None or after > EPOCH, "the next fire time is not later")
            fires_between(job.schedule, EPOCH - 7200.0, EPOCH, 5)
        json.dumps(job_view(job, stop=None, next_at=None, problem="", redacted=False))
        try:
            argv = self.builder.argv(job, {})
        except (RefusedError, UnavailableError):
            return
        check(all("\0" not in word for word in argv), "an argument that no program can be given")

    def _settings(self, text: bytes) -> str:
        Path(self.path).write_bytes(text)
        config, problems = read_config(self.path, {})
        self._told(config, problems)
        if config is None:
            return "refused"
        json.dumps(config.redacted())
        check(read_config(self.path, {})[0] == config, "the same file is read differently")
        return "accepted"

    def _environment(self, text: bytes) -> str:
        name, _, value = text.replace(b"\0", b" ").decode(errors="surrogateescape").partition("=")
        config, problems = read_config(None, {f"COORDD_{name}": value})
        self._told(config, problems)
        return "refused" if config is None else "accepted"

    def _told(self, accepted: object, problems: list[Problem]) -> None:
        """The file is used, or there is a reason; and reasons are safe for a terminal."""
        errors = [problem for problem in problems if problem.severity == "error"]
        check((accepted is None) == bool(errors), "refused without a reason, or used in spite of one")
        said = "\n".join([str(problem) for problem in problems])
        check(len(said) <= SAID_BYTES_MAX, f"{len(said)} characters about one file")
        check(not any(problem.message == "" for problem in problems), "a problem without a sentence")

    def _keys(self, text: bytes) -> str:
        Path(self.path).write_bytes(text)
        os.chmod(self.path, 0o600)
        try:
            ring = keyring.load(self.path, {})
        except ConfigError as exc:
            check(0 < len(str(exc)) <= SAID_BYTES_MAX, "refused without a reason")
            return "refused"
        check(ring.signing.secret, "no key signs")
        Path(self.path).write_bytes(keyring.render(ring).encode())
        check(keyring.load(self.path, {}) == ring, "a keyring that was written is another one when it is read")
        keyring.rotate(ring, Key("fresh", ACCEPT, b"f" * 32))
        return "accepted"


def toml_of(tree: Any) -> str:
    """A tree as TOML, one line a key; what TOML does not have (nothing, half a surrogate pair) makes it a bad file."""
    if isinstance(tree, dict):
        return "{ " + ", ".join(f"{json.dumps(str(key))} = {toml_of(value)}" for key, value in tree.items()) + " }"
    if isinstance(tree, list):
        return "[" + ", ".join(map(toml_of, tree)) + "]"
    if isinstance(tree, (bool, str)):
        return json.dumps(tree)
    return repr(tree) if isinstance(tree, (int, float)) else str(tree)


class FilesTarget:
    """jobfile, config, keyring and what reads TOML for them."""

    name = "files"
    what = "job files, configuration, environment, keyring"
    limit_s = 5.0

    def __init__(self) -> None:
        jobs = [EVERY_KEY, *SMALL, *[path.read_text() for path in sorted((DEPLOY / "jobs.d").glob("*.toml"))]]
        settings = [SETTINGS_FILE, (DEPLOY / "coordd.example.toml").read_text()]
        ring = Keyring(
            (
                Key("gone", RETIRED, b""),
                Key("old", ACCEPT, b"o" * 40, "2026-01-01T00:00:00Z"),
                Key("k", SIGN, b"n" * 32),
            )
        )
        texts = {
            JOB: jobs,
            JOB_BESIDE_ANOTHER: jobs,
            CONFIG: settings,
            ENVIRONMENT: VARIABLES,
            KEYRING: [keyring.render(ring)],
        }
        self._pools = {
            kind: Pool([text.encode() for text in of], WORDS, bytes_max=8 * 1024) for kind, of in texts.items()
        }
        self._trees = {kind: [tomllib.loads(text) for text in of] for kind, of in texts.items() if kind != ENVIRONMENT}

    def make(self, rng: random.Random) -> bytes:
        """A file spoilt as text, or as a tree that is TOML."""
        kind = pick(rng, (JOB, JOB, JOB, JOB_BESIDE_ANOTHER, CONFIG, CONFIG, ENVIRONMENT, KEYRING))
        if kind == ENVIRONMENT or rng.random() < 0.5:
            return bytes((kind,)) + self._pools[kind].make(rng)
        tree = distort(pick(rng, self._trees[kind]), rng, finite=False)
        if not isinstance(tree, dict):
            return bytes((kind,)) + toml_of(tree).encode()
        lines = [f"{json.dumps(str(key))} = {toml_of(value)}" for key, value in tree.items()]
        return bytes((kind,)) + "\n".join(lines).encode()

    @asynccontextmanager
    async def world(self) -> AsyncIterator[Try]:
        """A directory in memory, on a machine whose name needs no server to be known."""
        with scratch() as root, patch.object(socket, "getfqdn", lambda: "edge-1.example.com"):
            yield World(root).attempt
