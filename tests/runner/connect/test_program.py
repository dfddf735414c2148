"""The program that starts a server of Spark Connect and its client, with stand-ins for both."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from coordd.adapters.process import ROOT
from coordd.runner.connect.server import Server, client_env, listens

# In place of spark-submit: it listens where it is told, or does what its last argument says.
SERVER = """#!{python}
import os, socket, sys, time
port = int(sys.argv[2].partition("spark.connect.grpc.binding.port=")[2])
if sys.argv[-1] == "fails":
    sys.exit(3)
if sys.argv[-1].startswith("shut "):
    _, count, path = sys.argv[-1].split()
    with open(path, "a") as file:
        file.write("+")
    if os.path.getsize(path) <= int(count):
        if not os.fork():  # another process, which is not below this one, has the port for a while
            if not os.fork():
                listener = socket.create_server(("127.0.0.1", port))
                time.sleep(3)
            os._exit(0)
        time.sleep(60)
listener = socket.create_server(("127.0.0.1", port))
if sys.argv[-1] == "dies":
    time.sleep(0.5)
    sys.exit(4)
time.sleep(60)
"""

# In place of a client: it connects to its server, and does what it is told.
CLIENT = """
import os, socket, sys
port = int(os.environ["SPARK_REMOTE"].removeprefix("sc://localhost:").rstrip("/"))
socket.create_connection(("127.0.0.1", port)).close()
assert len(os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"]) == 64
assert "_SPARK_LAUNCHER_SECRET" not in os.environ
"""


# A module of the job, in one file among others.
IMPORTS = """
import helper
assert helper.ANSWER == 42
try:
    import neighbour
except ModuleNotFoundError:
    print("only what is named")
"""


@pytest.fixture
def submit(tmp_path: Path) -> str:
    path = tmp_path / "submit"
    path.write_text(SERVER.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


def run(submit: str, how: str, client: str) -> subprocess.CompletedProcess[str]:
    """The program, to its end. ``client``: what it does after it has connected."""
    options = json.dumps({"client": [sys.executable, "-c", CLIENT + client]})
    argv = [sys.executable, "-m", "coordd.runner.connect.program", options, "--", submit, how]
    env = {**os.environ, "_SPARK_LAUNCHER_SECRET": "x"}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("client", "code"),
    [("", 0), ("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", -9), ("os.kill(os.getpid(), 15)", -15)],
)
def test_it_ends_as_its_client_ends(submit: str, client: str, code: int) -> None:
    done = run(submit, "listens", client)
    assert done.returncode == code, done.stderr


def test_a_client_imports_the_files_that_the_job_names(submit: str, tmp_path: Path) -> None:
    """Spark makes each .py file of --py-files a module; in PYTHONPATH only directories and archives are looked into."""
    for path, text in (("lib/helper.py", "ANSWER = 42"), ("lib/neighbour.py", ""), ("old/helper.py", "ANSWER = 0")):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "run").mkdir()
    options = json.dumps({"client": [sys.executable, "-c", IMPORTS]})
    own = ["--properties-file", str(tmp_path / "run/secrets.properties")]
    argv = [sys.executable, "-m", "coordd.runner.connect.program", options, "--", submit, *own, "listens"]
    named = [*map(str, (tmp_path / "lib/helper.py", tmp_path / "old/helper.py")), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": ":".join([*named, str(ROOT)])}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "only what is named\n"), done.stderr


def test_a_server_that_does_not_start_has_no_client(submit: str) -> None:
    done = run(submit, "fails", "print('client')")
    assert (done.returncode, done.stdout) == (3, "")
    assert "the server of Spark Connect did not start (exit code 3)" in done.stderr


def test_a_server_whose_port_another_process_took_is_replaced(submit: str, tmp_path: Path) -> None:
    done = run(submit, f"shut 1 {tmp_path / 'starts'}", "print('client')")
    assert (done.returncode, done.stdout) == (0, "client\n"), done.stderr
    assert done.stderr.count("before the server of Spark Connect listened there") == 1


def test_servers_whose_ports_are_all_taken_have_no_client(submit: str, tmp_path: Path) -> None:
    done = run(submit, f"shut 99 {tmp_path / 'starts'}", "print('client')")
    assert (done.returncode, done.stdout) == (69, ""), done.stderr
    assert (tmp_path / "starts").read_text() == "+++"


def test_a_client_whose_server_ends_may_say_so(submit: str) -> None:
    done = run(submit, "dies", "import time; time.sleep(2); sys.exit(9)")
    assert done.returncode == 9
    assert "has ended (exit code 4) before its client" in done.stderr


def test_a_client_that_cannot_be_executed_is_named(submit: str) -> None:
    options = json.dumps({"client": ["/no/python"]})
    argv = [sys.executable, "-m", "coordd.runner.connect.program", options, "--", submit, "listens"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 127
    assert "/no/python cannot be executed: No such file" in done.stderr


def test_nobody_else_can_have_the_port_where_a_client_may_look_first(submit: str) -> None:
    server = Server([submit, "listens"], dict(os.environ))
    try:
        while not server.listens():
            assert not server.has_ended()
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as other:
            with pytest.raises(OSError, match="Errno") as refused:
                other.bind(("::1", server.port))
            assert refused.value.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL)
    finally:
        server.end()
    assert server.exit_code == -signal.SIGTERM


def test_a_listener_of_another_process_is_not_the_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert listens(os.getpid(), port)
        with subprocess.Popen(["sleep", "60"]) as other:
            assert not listens(other.pid, port)
            other.kill()
    assert not listens(os.getpid(), port)


def test_a_client_has_no_way_to_the_back_channel() -> None:
    env = client_env({"A": "1", "_SPARK_LAUNCHER_PORT": "5", "_SPARK_LAUNCHER_SECRET": "s"}, 77, "t")
    assert env == {"A": "1", "SPARK_CONNECT_AUTHENTICATE_TOKEN": "t", "SPARK_REMOTE": "sc://localhost:77/"}
