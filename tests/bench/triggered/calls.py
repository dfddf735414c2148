"""HTTP calls that start runs: how many one node accepts in a second, each recorded before its answer.

The node, Redis and the callers share the machine. So the processor time of the node for one call is measured too: it
says what bounds the rate where the callers are elsewhere.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from pathlib import Path

from support import servers

from bench.cluster import SETTLE_S, Cluster, cluster, until
from bench.figures import Figure, summary
from coordd.adapters.ledger.redis_ledger import RedisLedger

SECTION = "HTTP triggers"

CONNECTIONS = 64
WORD = "let-me-in"
TICKS = os.sysconf("SC_CLK_TCK")

# A ledger that is new to a node takes part in nothing for this long (seconds).
RECOVERED_S = 60.0


def measure(*, quick: bool) -> list[Figure]:
    """One node with Redis. Nearly all runs wait, as in a burst."""
    calls = 2000 if quick else 6000
    with servers.redis() as store:
        port = servers.free_port()
        with cluster(1, {}, ledger=store.url, COORDD_TRIGGERS_LISTEN=f"127.0.0.1:{port}") as nodes:
            _job(Path(nodes.root))
            nodes.nodes[0].call("reload")
            until(lambda: _recovered(nodes), "the ledger is used", limit_s=RECOVERED_S)
            time.sleep(SETTLE_S)
            before = _cpu_s(nodes)
            began, own = time.perf_counter(), time.process_time()
            waits, others = callers(port, calls)
            lasted, own = time.perf_counter() - began, time.process_time() - own
            used = _cpu_s(nodes) - before
            rows = len(RedisLedger(store.url, RECOVERED_S, cluster="default").runs(job="load", limit=calls + 1))
    said = f"{others} not answered with 202, {rows} rows; load {os.getloadavg()[0]:.1f}"
    detail = f"{calls} calls on {CONNECTIONS} connections, {own / calls * 1e3:.2f} ms of the callers for each, {said}"
    return [
        Figure(SECTION, "accepted in a second, callers on the same cores", calls / lasted, "/s", 1000, ">=", detail,
               {"milliseconds": summary(waits, 1e3)}),
        Figure(SECTION, "processor time of the node for one call", used / calls * 1e3, "ms", 1.0, "<=", detail),
        Figure(SECTION, "calls without 202, or without a row", others + abs(calls - rows), "", 0, "=", detail),
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


def _cpu_s(nodes: Cluster) -> float:
    fields = Path(f"/proc/{nodes.nodes[0].pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def callers(port: int, calls: int) -> tuple[list[float], int]:
    """All calls, each with its own key: how long each waited for its answer (seconds), and how many were refused."""
    left = iter(range(calls))
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
