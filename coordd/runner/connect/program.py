"""The program of an attempt: starts a server of Spark Connect, then the client; ends with the client's exit code.

    python … program OPTIONS -- SPARK-SUBMIT …

OPTIONS is JSON: ``client``, the argv of the client. On SIGTERM it tells client and server to end, waits for both, and
exits with 143. The runner kills all three after its kill grace.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from typing import NoReturn

from coordd.runner.connect.server import TOKEN, PreparedServer, Server, client_env, spawn

# How often (seconds) the server is looked at, while it starts and after.
START_LOOK_S = 0.02
LOOK_S = 0.1

# A server listens within this time (seconds), also on a busy machine.
START_S = 600.0

# Servers that are started, if other processes take their ports.
STARTS_MAX = 3

# A client whose server has ended gets this time (seconds) to say so; then it is ended.
CLIENT_S = 5.0

# The variable in which the runner says which server it has taken (JSON: address, pid, port).
PREPARED = "COORDD_CONNECT"

# Exit code (sysexits.h): the server could not be used.
EXIT_UNAVAILABLE = 69

EXIT_TERMINATED = 128 + signal.SIGTERM

# Below the directory of the attempt's settings: links to the files that the client imports.
MODULES = "coordd-modules"


class Terminated:
    """Whether this program was told to end. Both others would die with it, so it must not end first."""

    told = False


def _terminate(*_: object) -> None:
    Terminated.told = True


def main() -> NoReturn:
    """Run server and client."""
    signal.signal(signal.SIGTERM, _terminate)
    options, words = json.loads(sys.argv[1]), sys.argv[3:]
    if "PYTHONPATH" in os.environ:
        os.environ["PYTHONPATH"] = _importable(os.environ["PYTHONPATH"], words)
    server = _prepared(os.environ.pop(PREPARED, ""), os.environ.pop(TOKEN, "")) or Server(words, dict(os.environ))
    for left in reversed(range(STARTS_MAX)):
        if _await(server):
            break
        server.end()
        say(f"another process took port {server.port} before the server of Spark Connect listened there")
        if not left:
            sys.exit(EXIT_UNAVAILABLE)
        server = Server(words, dict(os.environ))
    code = _client(options["client"], server)
    if Terminated.told:
        _leave(server)
    server.end()
    _exit(code)


def _importable(paths: str, words: "list[str]") -> str:
    """PYTHONPATH with a directory of links in place of its ``.py`` files, of which Python takes no notice. spark-submit
    does the same with those of --py-files. Of two with one name the first counts.
    """
    places = paths.split(":")
    files = [path for path in places if path.endswith(".py") and os.path.isfile(path)]
    if not files or "--properties-file" not in words:
        return paths
    directory = f"{os.path.dirname(words[words.index('--properties-file') + 1])}/{MODULES}"
    os.makedirs(directory, mode=0o700, exist_ok=True)
    for path in files:
        with contextlib.suppress(FileExistsError):
            os.symlink(path, f"{directory}/{os.path.basename(path)}")
    return ":".join([directory, *[path for path in places if path not in files]])


def _prepared(said: str, token: str) -> "PreparedServer | None":
    """The server that the runner has taken for us; None without one."""
    if not said:
        return None
    try:
        told = json.loads(said)
        server = PreparedServer(told["pid"], told["port"], token)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.connect(told["address"])
            socket.send_fds(link, [b"output"], [1])  # what the server prints belongs into the log of the run
    except OSError as exc:
        say(f"the prepared server of Spark Connect cannot be used ({exc.strerror}); another one starts")
        return None
    return server


def _await(server: "Server | PreparedServer") -> bool:
    """Wait until the server listens; False if another process has its port. End if it never will."""
    deadline = time.monotonic() + START_S
    while not server.listens():
        if Terminated.told:
            _leave(server)
        if server.has_ended():
            say(f"the server of Spark Connect did not start (exit code {server.exit_code}); its output is above")
            sys.exit(server.exit_code if server.exit_code and server.exit_code > 0 else EXIT_UNAVAILABLE)
        if time.monotonic() > deadline:
            say(f"the server of Spark Connect does not listen after {START_S:g} s")
            server.end()
            sys.exit(EXIT_UNAVAILABLE)
        if server.is_shut_out():
            return False
        time.sleep(START_LOOK_S)
    return True


def _client(argv: "list[str]", server: "Server | PreparedServer") -> int:
    """Run the client; its exit code, negative for a signal. A client is not started, or ends, if we are told to end."""
    if Terminated.told:
        return EXIT_TERMINATED
    env = client_env(dict(os.environ), server.port, server.token)
    pid = spawn(argv, env)
    kill_at = 0.0
    while True:
        if Terminated.told:
            os.kill(pid, signal.SIGTERM)
            server.terminate()
            os.waitpid(pid, 0)
            return EXIT_TERMINATED
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if not kill_at and server.has_ended():
            say(f"the server of Spark Connect has ended (exit code {server.exit_code}) before its client")
            kill_at = time.monotonic() + CLIENT_S
        if kill_at and time.monotonic() > kill_at:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return EXIT_UNAVAILABLE
        time.sleep(LOOK_S if kill_at else START_LOOK_S)


def _leave(server: "Server | PreparedServer") -> NoReturn:
    """Told to end, and there is no client: wait for the server, which ends itself."""
    server.terminate()
    while not server.has_ended():
        time.sleep(START_LOOK_S)
    sys.exit(EXIT_TERMINATED)


def _exit(code: int) -> NoReturn:
    """End as the client has ended."""
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    sys.exit(code if code >= 0 else 128 - code)


def say(text: str) -> None:
    """Into the log of the run."""
    print(f"coordd: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
