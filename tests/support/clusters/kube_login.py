"""A log-in command as cloud providers have one, and the kubeconfig that names it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from coordd.adapters.cluster.kube_access import Access

V1, V1BETA1 = (f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1"))

# Counts its calls, keeps what it was told, and prints the answer that lies beside it.
COMMAND = """#!/bin/sh
cd "$(dirname "$0")"
echo "$@" >> called
test -z "$KUBERNETES_EXEC_INFO" || echo "$KUBERNETES_EXEC_INFO" > told
printf %s "$PROFILE" > profile
test ! -e code || { echo "no session, password=hunter2" >&2; exit "$(cat code)"; }
cat answer
"""


class Plugin:
    """A log-in command in a directory of its own, and a kubeconfig that names it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "config"
        command = directory / "get-token"
        command.write_text(COMMAND)
        command.chmod(0o755)

    def answers(self, token: str = "", version: str = V1, **status: Any) -> None:
        content = {"kind": "ExecCredential", "apiVersion": version, "status": {"token": token, **status}}
        (self.directory / "answer").write_text(json.dumps(content))

    def calls(self) -> list[str]:
        path = self.directory / "called"
        return path.read_text().splitlines() if path.exists() else []

    def told(self) -> dict[str, Any]:
        found = json.loads((self.directory / "told").read_text())
        assert isinstance(found, dict)
        return found

    def configure(self, url: str, cluster: dict[str, Any] | None = None, **said: Any) -> None:
        """Write the kubeconfig. Spark takes the cluster's address from it, coordd that of the master."""
        command = str(self.directory / "get-token")
        content = {
            "current-context": "here",
            "clusters": [{"name": "one", "cluster": {"server": url, **(cluster or {})}}],
            "contexts": [{"name": "here", "context": {"cluster": "one", "user": "me"}}],
            "users": [{"name": "me", "user": {"exec": {"apiVersion": V1, "command": command, **said}}}],
        }
        self.config.write_text(json.dumps(content))
        self.config.chmod(0o600)

    def access(self, url: str, cluster: dict[str, Any] | None = None, **said: Any) -> Access:
        self.configure(url, cluster, **said)
        return self.again(url)

    def again(self, url: str) -> Access:
        """As for the next look-up: each reads the kubeconfig again."""
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "KUBECONFIG": str(self.config)}
        return Access(f"k8s://{url}", {}, env, account="/nonexistent")
