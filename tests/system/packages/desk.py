"""The place from which a site is watched: a real Prometheus with the rules of deploy/watch, and a receiver for whatever
calls people: the posts of hooks, and the alerts that Prometheus would send to its Alertmanager.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import urllib.request
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support import netns

RULES = Path(__file__).parents[3] / "deploy/watch/coordd.rules.yml"

PAGES_PORT, PROMETHEUS_PORT = 8080, 9090
PROMETHEUS = f"http://127.0.0.1:{PROMETHEUS_PORT}"

# The rules wait for minutes, and ask 15 s apart; here it goes this many times faster.
HURRY = 60

CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
alerting:
  alertmanagers:
    - static_configs: [{{targets: ["127.0.0.1:{pages}"]}}]
scrape_configs:
  - job_name: coordd
    static_configs: [{{targets: [{targets}]}}]
"""


def hurried(rules: str) -> str:
    """The rules with shorter waits; nothing else is changed."""
    return re.sub(r"(?m)^( +for: )(\d+)m$", lambda found: f"{found[1]}{int(found[2]) * 60 // HURRY}s", rules)


def without_resolved(body: Any) -> Any:
    """The posted alerts, less those that Prometheus calls over: their end has passed."""
    if not isinstance(body, list):
        return body
    now = datetime.now(tz=UTC)
    return [alert for alert in body if datetime.fromisoformat(alert["endsAt"]) > now]


class Desk:
    """A context manager. ``home``: a directory for the files of Prometheus."""

    def __init__(self, namespace: str, targets: Iterable[str], home: Path) -> None:
        self._namespace, self._home = namespace, home
        self._targets = ", ".join([f'"{target}"' for target in targets])
        self._received: list[tuple[str, Any]] = []
        self._prometheus: subprocess.Popen[bytes] | None = None
        self._receiver: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        received = self._received

        class Receiver(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append((self.path, without_resolved(json.loads(body))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing: the test looks at what was received."""

        rules, config = self._home / "rules.yml", self._home / "prometheus.yml"
        rules.write_text(hurried(RULES.read_text()))
        config.write_text(CONFIG.format(rules=rules, pages=PAGES_PORT, targets=self._targets))
        self.promtool("check", "config", str(config))
        with netns.inside(self._namespace), (self._home / "log").open("wb") as log:
            self._receiver = ThreadingHTTPServer(("", PAGES_PORT), Receiver)
            self._prometheus = subprocess.Popen(
                [
                    *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={self._home / 'data'}"),
                    f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        threading.Thread(target=self._receiver.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._prometheus is not None
        assert self._receiver is not None
        self._prometheus.terminate()
        self._prometheus.wait(timeout=60)
        self._receiver.shutdown()
        self._receiver.server_close()

    def pages(self) -> list[dict[str, Any]]:
        """What hooks have posted, in order."""
        return [body for path, body in self._received if path == "/page"]

    def forget(self) -> None:
        """Count from now on. Prometheus evaluates rules from its start, and scrapes only some 5 s later: until then all
        nodes are absent, for as long as the hurried rules wait.
        """
        self._received.clear()

    def calls(self, *severities: str) -> set[tuple[str, ...]]:
        """(alert, summary) of all alerts so far that Prometheus has sent as firing, of these severities."""
        return {
            (alert["labels"]["alertname"], alert["annotations"]["summary"])
            for path, body in list(self._received)
            if path == "/api/v2/alerts"
            for alert in body
            if alert["labels"]["severity"] in severities
        }

    def ask(self, query: str) -> list[dict[str, Any]]:
        """What Prometheus answers now; [] while it does not answer yet."""
        with suppress(subprocess.CalledProcessError):
            found: list[dict[str, Any]] = json.loads(
                self.promtool("query", "instant", "--format=json", PROMETHEUS, query)
            )
            return found
        return []

    def promtool(self, *words: str) -> str:
        """Run promtool at the desk; returns its output. Raises CalledProcessError."""
        with netns.inside(self._namespace):
            return subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60, check=True).stdout


class Browser:
    """Reads the pages of `coordctl web` on a machine, with the session that the printed address opens."""

    def __init__(self, namespace: str, address: str) -> None:
        self._namespace = namespace
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor()
        )
        self._home = address.partition("?")[0]
        self._get(address)

    def page(self, path: str) -> str:
        return self._get(self._home + path)

    def _get(self, address: str) -> str:
        with netns.inside(self._namespace), self._opener.open(address, timeout=30) as answer:
            text: str = answer.read().decode()
            return text
