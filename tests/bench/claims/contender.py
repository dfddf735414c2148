"""A process that claims. It reads commands as JSON lines on stdin, and answers each with one JSON line on stdout.

python -m bench.claims.contender NAME
"""

from __future__ import annotations

import contextlib
import json
import select
import sys
import time
from collections.abc import Sequence
from typing import Any

from bench.claims.clients import CLIENTS, Client, Ours
from coordd.core.ledger.runner_requests import Grant
from coordd.core.ledger.words import AttemptNumber, Token

# A held claim is renewed this often in a lease.
RENEWALS = 5


class Contender:
    """The commands: one method each. ``store`` is (kind, address, lease in seconds)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._clients: dict[tuple[str, str, float], Client] = {}

    def client(self, store: Sequence[Any]) -> Client:
        """The connection to a store, which lasts."""
        kind, address, lease_s = store
        where = (kind, address, lease_s)
        if where not in self._clients:
            self._clients[where] = CLIENTS[kind](address, self.name, lease_s)
        return self._clients[where]

    def drop(self, store: Sequence[Any]) -> None:
        """Close the connection; the next use connects again."""
        client = self._clients.pop(tuple(store), None)
        if client is not None:
            with contextlib.suppress(Exception):  # the store may be gone
                client.close()

    def do_connect(self, store: Sequence[Any]) -> None:
        self.client(store)

    def do_drop(self, store: Sequence[Any]) -> None:
        self.drop(store)

    def do_prepare(self, store: Sequence[Any], keys: Sequence[str]) -> None:
        self.client(store).prepare(keys)

    def do_claims(self, store: Sequence[Any], keys: Sequence[str], limit_s: float) -> dict[str, Any]:
        """One claim after the other, until the limit. Returns how long each took (ms), and when those that were granted
        were asked for: from then on a careful holder counts its lease.
        """
        client = self.client(store)
        until = time.monotonic() + limit_s
        granted, took = {}, []
        for key in keys:
            began = time.monotonic()
            if began > until:
                break
            won = client.claim(key)
            took.append((time.monotonic() - began) * 1000)
            if won:
                granted[key] = began
        return {"granted": granted, "ms": took}

    def do_race(self, store: Sequence[Any], key: str, at: float) -> dict[str, Any]:
        """One claim at an instant (CLOCK_MONOTONIC), the same for all contenders."""
        client = self.client(store)
        time.sleep(max(0.0, at - time.monotonic()))
        won = client.claim(key)
        return {"won": won, "ms": (time.monotonic() - at) * 1000}

    def do_burst(self, store: Sequence[Any], keys: Sequence[str], at: float, limit_s: float) -> dict[str, Any]:
        """Claims as fast as possible from that instant on."""
        self.client(store)
        time.sleep(max(0.0, at - time.monotonic()))
        done = self.do_claims(store, keys, limit_s)
        return {"granted": len(done["granted"]), "asked": len(done["ms"]), "ended": time.monotonic()}

    def do_hold(self, store: Sequence[Any], key: str) -> None:
        """Claim, answer, and renew until this process is killed, or until the benchmark ends."""
        client = self.client(store)
        say({"ok": client.claim(key)})
        while not select.select([sys.stdin], [], [], store[2] / RENEWALS)[0]:  # readable: the benchmark is gone
            client.renew(key)

    def do_wait(self, store: Sequence[Any], keys: Sequence[str], every_s: float, until: float) -> dict[str, Any]:
        """Ask for each key until it is granted, or until an instant. Returns when each was granted.

        A store that is away or that is recovering is asked again.
        """
        granted: dict[str, float] = {}
        while len(granted) < len(keys) and time.monotonic() < until:
            try:
                client = self.client(store)
                for key in keys:
                    if key not in granted and client.claim(key):
                        granted[key] = time.monotonic()
            except Exception:  # each client has its own errors; all mean: no answer
                self.drop(store)
            time.sleep(every_s)
        return {"granted": granted}

    def do_grants(self, store: Sequence[Any]) -> dict[str, Any]:
        """What the gossip tells the other nodes: the grants of this one."""
        client = self.client(store)
        assert isinstance(client, Ours)
        return {key: [grant.run, grant.attempt, grant.token, grant.nonce] for key, grant in client.grants.items()}

    def do_testify(self, store: Sequence[Any], grants: dict[str, Any], until: float) -> dict[str, Any]:
        """Restore these grants in our ledger, as each node does that has heard of them."""
        left = {
            key: Grant(run=run, attempt=AttemptNumber(attempt), token=Token(token), nonce=nonce)
            for key, (run, attempt, token, nonce) in grants.items()
        }
        while left and time.monotonic() < until:
            try:
                client = self.client(store)
                assert isinstance(client, Ours)
                left = {key: grant for key, grant in left.items() if not client.testify(key, grant)}
            except Exception:  # as above
                self.drop(store)
            time.sleep(0.1)
        return {"left": len(left)}


def say(answer: Any) -> None:
    """One line to the benchmark."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Until stdin ends."""
    contender = Contender(sys.argv[1])
    for line in sys.stdin:
        command = json.loads(line)
        do = command.pop("do")
        try:
            say({"ok": getattr(contender, f"do_{do}")(**command)})
        except Exception as exc:  # told to the benchmark, which names the store
            say({"error": f"{type(exc).__name__}: {exc}"[:500]})


if __name__ == "__main__":
    main()
