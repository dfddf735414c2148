"""Spark Connect: a program that is told to end lets its client and its server end themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEADLINE_S = 60.0

# In place of spark-submit. It says good-bye: that takes a while.
SERVER = """#!{python}
import os, signal, socket, sys, time
def end(*_):
    time.sleep(0.7)
    open("server-ended", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, end)
open("server", "w").close()
if sys.argv[-1] == "listens":
    port = int(sys.argv[2].partition("spark.connect.grpc.binding.port=")[2])
    listener = socket.create_server(("127.0.0.1", port))
while True: time.sleep(0.05)
"""

CLIENT = """
import os, signal, sys, time
def end(*_):
    time.sleep(0.4)
    open("client-ended", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, end)
open("client", "w").close()
while True: time.sleep(0.05)
"""


def start(path: Path, how: str) -> subprocess.Popen[str]:
    submit = path / "submit"
    submit.write_text(SERVER.format(python=sys.executable))
    submit.chmod(0o755)
    options = json.dumps({"client": [sys.executable, "-c", CLIENT]})
    argv = [sys.executable, "-m", "coordd.runner.connect.program", options, "--", str(submit), how]
    root = str(Path(__file__).parents[3])
    env = {**os.environ, "PYTHONPATH": root}
    return subprocess.Popen(argv, cwd=path, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(path: Path) -> None:
    limit = time.monotonic() + DEADLINE_S
    while not path.exists():
        assert time.monotonic() < limit, path
        time.sleep(0.01)


@pytest.mark.parametrize("to", ["the program alone", "all, as a runner does"])
def test_client_and_server_end_themselves(tmp_path: Path, to: str) -> None:
    process = start(tmp_path, "listens")
    wait_for(tmp_path / "client")
    (os.kill if to == "the program alone" else os.killpg)(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert (tmp_path / "client-ended").exists()
    assert (tmp_path / "server-ended").exists()


def test_a_server_that_does_not_listen_yet_ends_itself_without_a_client(tmp_path: Path) -> None:
    process = start(tmp_path, "waits")
    wait_for(tmp_path / "server")
    process.terminate()
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert (tmp_path / "server-ended").exists()
    assert not (tmp_path / "client").exists()
