"""From the launch of a Spark job to the end of its first task: by default, with fast_start, with connect; in turn."""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from support.spark.class_archives import real_archive

from bench.figures import Figure, summary
from coordd.adapters.disk.files import write_atomic
from coordd.adapters.faststart.prepared import Prepared
from coordd.adapters.spark import AttemptInfo, ProgramSpec, SparkDefaults, build
from coordd.core.jobs.job import Job, SparkSubmit
from coordd.launching import connect_argv

SECTION = "spark_start"

# One task, and when it ended.
FIRST_TASK = """
import sys, time
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.range(1).collect()
with open(sys.argv[1], "w") as file:
    print(time.time(), file=file)
spark.stop()
"""

# A driver takes 8 s on an idle machine.
LIMIT_S = 300.0


def measure(*, quick: bool) -> list[Figure]:
    """Each way in turn, each in a directory of its own."""
    rounds = 3 if quick else 10
    directory = tempfile.mkdtemp(prefix="coordd-bench-")
    try:
        archive = real_archive(f"{directory}/archives")
        ways = {
            "default": SparkSubmit(f"{directory}/app.py"),
            "fast_start": SparkSubmit(f"{directory}/app.py", fast_start=True),
            "connect": SparkSubmit(f"{directory}/app.py", connect="pool"),
        }
        Path(directory, "app.py").write_text(FIRST_TASK)
        took: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(rounds):
            for way, launch in ways.items():
                took[way].append(_took(f"{directory}/{way}-{number}", launch, os.path.dirname(archive.path)))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    middle = {way: statistics.median(times) for way, times in took.items()}
    text = ", ".join(f"{way} {seconds:.1f} s" for way, seconds in middle.items()) + f"; {rounds} of each in turn"
    samples = {"seconds": {way: summary(times) for way, times in took.items()}}
    return [
        Figure(
            SECTION,
            f"to the first task: default ÷ {way}",
            middle["default"] / middle[way],
            "x",
            least,
            ">=",
            text,
            samples,
        )
        for way, least in (("fast_start", 2.0), ("connect", 4.0))
    ]


def _took(directory: str, launch: SparkSubmit, archives: str) -> float:
    """Seconds from just before the program is started to the end of the first task; a server is prepared earlier."""
    os.makedirs(directory, mode=0o700)
    info = AttemptInfo("bench#1", 0, 1, "nonce", "edge-1", 0.0, "", directory)
    job = Job(name="bench", digest="d", launch=launch)
    program = build(job, launch, SparkDefaults(master="local[2]", archives=archives), info)
    if launch.connect:
        return _with_server(directory, program)
    write_atomic(program.secrets_path, program.secrets.encode())
    return _first_task(directory, [*program.argv, f"{directory}.out"], program.env)


def _with_server(directory: str, program: ProgramSpec) -> float:
    server = Prepared(directory, program.argv, program.env, program.client[0], program.secrets, program.secrets_path)
    try:
        wait_for(lambda: server.ready or server.ended(), LIMIT_S)
        address = server.give()["connect"]["address"]  # type: ignore[index]  # as in a spec
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:  # in place of the runner
            link.connect(address)
            link.send(b"take")
            told = json.loads(link.recv(4096))
            env = {
                **program.env,
                "COORDD_CONNECT": json.dumps({**told, "address": address}),
                "SPARK_CONNECT_AUTHENTICATE_TOKEN": told["token"],
            }
            out = program._replace(client=[*program.client, f"{directory}.out"])
            return _first_task(directory, connect_argv(out, out.argv), env)
    finally:
        server.close()
        wait_for(server.ended, LIMIT_S)


def _first_task(directory: str, argv: list[str], env: dict[str, str]) -> float:
    began = time.time()
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    return float(Path(f"{directory}.out").read_text()) - began


def wait_for(happened: Callable[[], bool], limit_s: float) -> None:
    """Raises RuntimeError."""
    deadline = time.monotonic() + limit_s
    while not happened():
        if time.monotonic() > deadline:
            raise RuntimeError("it takes too long")
        time.sleep(0.05)
