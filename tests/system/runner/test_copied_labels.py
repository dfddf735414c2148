"""Another user of the machine fills a runner's back-channel, and copies its nonce and its label to other processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from coordd.runner.channel import CONNECTIONS_MAX, Channel, java_string
from coordd.runner.kernel import label_of
from coordd.runner.tree import Tree

SECRET = "5ec3e7"  # noqa: S105 - the secret of the channel below
APPLICATION = "application_1700000000000_0001"
NONCE = "0123456789abcdef"

CONNECTS = """
import encodings.idna, os, socket, sys, time  # the first before its files are out of reach
os.setgroups([]); os.setgid(65534); os.setuid(65534)
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
print("there", flush=True)
time.sleep(60)
"""

CARRIES = """
import os, resource, sys, time
if sys.argv[1] == "stranger":
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
RLIMIT_LOCKS = 10
resource.setrlimit(RLIMIT_LOCKS, (int(sys.argv[2]), int(sys.argv[2])))
os.execve("/bin/sh", ["sh", "-c", "echo there; exec sleep 60"], {"COORDD_NONCE": sys.argv[3]})
"""


@contextmanager
def another(script: str, *args: str) -> Iterator[int]:
    argv = [sys.executable, "-I", "-c", script, *args]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_a_stranger_cannot_hold_the_places_of_the_back_channel() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=16)
    port = listener.getsockname()[1]
    channel = Channel(listener.detach(), SECRET)
    try:
        with another(CONNECTS, str(port), str(2 * CONNECTIONS_MAX)):
            for _ in range(2 * CONNECTIONS_MAX):
                assert channel.accept() is None
            with socket.create_connection(("127.0.0.1", port)) as driver:
                fd = channel.accept()
                assert fd is not None
                hello = java_string(SECRET.encode()) + b"x$SetAppId" + java_string(APPLICATION.encode())
                driver.sendall(hello)
                found, until = "", time.monotonic() + 30
                while not found and time.monotonic() < until:
                    found = channel.read(fd)[1]
                assert found == APPLICATION
    finally:
        channel.close()


def test_java_which_speaks_ipv4_over_ipv6_is_known() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    channel = Channel(listener.detach(), SECRET)
    try:
        port = channel._listener.getsockname()[1]
        with socket.socket(socket.AF_INET6) as driver:
            driver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            driver.connect(("::ffff:127.0.0.1", port))
            assert channel.accept() is not None
    finally:
        channel.close()


def test_the_user_of_a_run_is_no_stranger() -> None:
    """A run with run_as has its driver there. Spark ends without an answer, so nobody may hang up on it."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    channel = Channel(listener.detach(), SECRET, "nobody")
    try:
        with another(CONNECTS, str(port), "1"):
            assert channel.accept() is not None
        with socket.create_connection(("127.0.0.1", port)):
            assert channel.accept() is not None, "nor are we"
    finally:
        channel.close()


def test_a_strangers_process_with_a_copied_nonce_is_not_taken_for_ours() -> None:
    born = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
    tree = Tree(NONCE, "", {os.getpid()}, born)
    for who, is_member in (("ours", True), ("stranger", False)):
        # The new process must not descend from a spare process, just as a daemonised process does not.
        tree.spare = {2**22 - 1}
        with another(CARRIES, who, str(label_of(NONCE)), NONCE) as pid:
            assert (pid in tree.members()) == is_member, who
