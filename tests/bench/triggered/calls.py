"""HTTP calls that start runs: how many one node accepts in a second, each recorded before its answer.

The node, Redis and the callers share the machine, often with other work. So the processor time of each for one call is
measured too: it says what bounds the rate. A thousand calls a second on two cores need at most 1 ms of the node, whose
loop has one thread, and 2 ms of all three.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from pathlib import Path
from typing import NamedTuple

from support import servers

from bench.cluster import SETTLE_S, Cluster, cluster, cpu_s, until
from bench.figures import Figure, summary
from coordd.adapters.ledger.redis_ledger import RedisLedger

SECTION = "HTTP triggers"

CONNECTIONS = 64
WORD = "let-me-in"

# Equal parts of the burst: in the last one, nearly all runs of the others wait.
PARTS = 3

# How long (seconds) the node is watched while all runs of the burst wait, and nobody calls.
WAITING_S = 10.0

# A ledger that is new to a node takes part in nothing for this long (seconds).
RECOVERED_S = 60.0


class Part(NamedTuple):
    """What a part of the burst needed, in seconds."""

    lasted: float
    node: float
    redis: float
    own: float
    waits: list[float]
    others: int  # calls that were not answered with 202


def measure(*, quick: bool) -> list[Figure]:
    """One node with Redis. Nearly all runs wait, as in a burst."""
    each = (1500 if quick else 6000) // PARTS
    calls = each * PARTS
    with servers.redis() as store:
        port = servers.free_port()
        with cluster(1, {}, ledger=store.url, COORDD_TRIGGERS_LISTEN=f"127.0.0.1:{port}") as nodes:
            _job(Path(nodes.root))
            nodes.nodes[0].call("reload")
            until(lambda: _recovered(nodes), "the ledger is used", limit_s=RECOVERED_S)
            time.sleep(SETTLE_S)
            pid = nodes.nodes[0].pid
            parts = [_part(port, range(one * each, (one + 1) * each), pid, store.pid) for one in range(PARTS)]
            before, began = cpu_s(pid), time.perf_counter()
            time.sleep(WAITING_S)
            waiting = (cpu_s(pid) - before) / (time.perf_counter() - began)
            rows = len(RedisLedger(store.url, RECOVERED_S, cluster="default").runs(job="load", limit=calls + 1))
    return _figures(parts, each, waiting, rows)


def _part(port: int, numbers: range, node: int, redis: int) -> Part:
    """``node`` and ``redis`` are pids."""
    used, stored, own, began = cpu_s(node), cpu_s(redis), time.process_time(), time.perf_counter()
    waits, others = callers(port, numbers)
    lasted, own = time.perf_counter() - began, time.process_time() - own
    return Part(lasted, cpu_s(node) - used, cpu_s(redis) - stored, own, waits, others)


def _figures(parts: list[Part], each: int, waiting: float, rows: int) -> list[Figure]:
    calls = each * len(parts)
    lasted, node, redis, own = (sum(getattr(part, of) for part in parts) / calls for of in Part._fields[:4])
    others = sum(part.others for part in parts)
    waits = [wait for part in parts for wait in part.waits]
    detail = f"{calls} calls on {CONNECTIONS} connections; load {os.getloadavg()[0]:.1f}"
    shares = f"node {node * 1e3:.2f}, Redis {redis * 1e3:.2f}, callers {own * 1e3:.2f} ms"
    growth = ", ".join(f"{part.node / each * 1e3:.2f}" for part in parts)
    return [
        Figure(SECTION, "accepted in a second, callers on the same cores", 1 / lasted, "/s", 1000, ">=", detail,
               {"milliseconds": summary(waits, 1e3)}),
        Figure(SECTION, "processor time of the node for one call", node * 1e3, "ms", 1.0, "<=", detail),
        Figure(SECTION, "the same of node, Redis and callers", (node + redis + own) * 1e3, "ms", 2.0, "<=", shares),
        Figure(SECTION, f"the node's time for one call: the last part of {len(parts)} ÷ the first",
               parts[-1].node / parts[0].node, "x", 1.2, "<=", f"{growth} ms, with {each} more waiting runs in each"),
        Figure(SECTION, f"the node while {calls} runs wait, and nobody calls", waiting * 1e2, "% of a core", 25, "<="),
        Figure(SECTION, "calls without 202, or without a row", others + abs(calls - rows), "", 0, "=",
               f"{others} and {calls - rows}"),
    ]  # fmt: skip


def _job(root: Path) -> None:
    secret = root / "token"
    secret.write_text(f"{WORD}\n")
    secret.chmod(0o600)
    (root / "jobs" / "load.toml").write_text(
        'overlap = "allow"\nconcurrency = 1\nparams = { what = "" }\n[command]\nargv = ["/bin/sleep", "1000"]\n'
        f'[[trigger]]\nkind = "http"\nroute = "/orders"\nsecret_file = "{secret}"\nmax_open = 20000\n'
        'args = { what = "{trigger.key}" }\n'
    )


def _recovered(nodes: Cluster) -> bool | None:
    return True if nodes.nodes[0].call("status")["ledger"]["state"] == "connected" else None


def callers(port: int, numbers: range) -> tuple[list[float], int]:
    """A call for each number, with its own key: how long each waited for its answer (seconds), and how many were
    refused.
    """
    left = iter(numbers)
    begun: dict[socket.socket, float] = {}
    waits: list[float] = []
    others = 0
    with selectors.DefaultSelector() as selector:

        def call(sock: socket.socket) -> None:
            number = next(left, None)
            if number is None:
                selector.unregister(sock)
                sock.close()
                return
            body = b'{"what": "x"}'
            head = (
                f"POST /orders HTTP/1.1\r\nHost: n0\r\nAuthorization: Bearer {WORD}\r\nIdempotency-Key: k{number}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            begun[sock] = time.perf_counter()
            sock.sendall(head.encode() + body)

        for _ in range(CONNECTIONS):
            sock = socket.create_connection(("127.0.0.1", port))
            selector.register(sock, selectors.EVENT_READ)
            call(sock)
        while selector.get_map():
            for key, _ in selector.select(60):
                assert isinstance(key.fileobj, socket.socket)
                answer = key.fileobj.recv(65536)  # an answer is one packet
                waits.append(time.perf_counter() - begun[key.fileobj])
                others += answer[9:12] != b"202"
                call(key.fileobj)
    return waits, others
