"""An API server of Kubernetes: pods, services and config maps of one namespace, as spark-submit and we use them."""

from __future__ import annotations

import json
import ssl
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.clusters.wire import Asked, FakeServer

PODS = "/api/v1/namespaces/default/pods"


class FakeKubernetes(FakeServer):
    """``pods`` by name. ``hidden``: they exist, and are not listed yet. ``logs``: what their drivers printed.
    ``no_logs``: the account has no right to read logs. ``drivers``: what the UIs of pods answer, by name and path;
    ``no_proxy``: the account has no right to ask them.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, bearer: str = "") -> None:
        super().__init__(tls)
        self.pods: dict[str, dict[str, Any]] = {}
        self.others: dict[str, dict[str, Any]] = {}  # services and config maps, by path
        self.hidden: set[str] = set()
        self.logs: dict[str, bytes] = {}
        self.no_logs = False
        self.drivers: dict[str, dict[str, Any]] = {}
        self.no_proxy = False
        self.bearer = bearer
        self.page = 0  # a small page forces the client to go on; 0: as it asks
        self.dies_slowly = False
        self.refused = 0  # pods whose name was taken

    def submit(self, name: str, labels: dict[str, str], phase: str = "Running") -> str:
        """A driver pod is made; returns its name."""
        with self.lock:
            return str(
                self._create({"metadata": {"name": name, "labels": labels}, "spec": {}}, phase)["metadata"]["name"]
            )

    def finish(self, name: str, exit_code: int = 0, message: str = "", phase: str = "", says: str = "") -> None:
        """``message``: only of a container that wrote one to its terminationMessagePath, which Spark's does not.
        ``says``: what the driver printed.
        """
        with self.lock:
            ended = {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed", "finishedAt": now()}
            if message:
                ended["message"] = message
            self.logs[name] = says.encode()
            self.pods[name]["status"] = {
                "phase": phase or ("Failed" if exit_code else "Succeeded"),
                "containerStatuses": [{"name": "spark-kubernetes-driver", "state": {"terminated": ended}}],
            }

    def alive(self) -> list[str]:
        with self.lock:
            return [name for name, pod in self.pods.items() if pod["status"]["phase"] not in ("Succeeded", "Failed")]

    def of_mark(self, mark: str) -> list[str]:
        with self.lock:
            return [name for name, pod in self.pods.items() if pod["metadata"]["labels"].get("coordd-run") == mark]

    def purge(self, name: str) -> None:
        with self.lock:
            del self.pods[name]

    def kubeconfig(self, path: Path, user: dict[str, str]) -> dict[str, str]:
        """Write a kubeconfig (YAML, as people have it); returns the environment."""
        lines = "".join(f"    {key}: {value}\n" for key, value in user.items()) or "    username: nobody\n"
        path.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: here\n"
            f"clusters:\n- name: one\n  cluster:\n    server: {self.url}\n"
            "contexts:\n- name: here\n  context: {cluster: one, user: me, namespace: default}\n"
            f"users:\n- name: me\n  user:\n{lines}"
        )
        return {"KUBECONFIG": str(path)}

    def answer(self, asked: Asked) -> tuple[int, Any] | tuple[int, bytes, dict[str, str]]:
        if self.bearer and asked.headers.get("authorization") != f"Bearer {self.bearer}":
            return status(401, "Unauthorized", "Unauthorized")
        parts = urlsplit(asked.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        with self.lock:
            if parts.path == PODS:
                return self._pod_made(asked) if asked.method == "POST" else (200, self._listed(query))
            if parts.path.startswith(f"{PODS}/") and "/proxy/" in parts.path:
                return self._proxied(*parts.path.removeprefix(f"{PODS}/").split("/proxy", 1))
            if parts.path.startswith(f"{PODS}/") and parts.path.endswith("/log"):
                return self._log(parts.path.split("/")[-2], query)
            if parts.path.startswith(f"{PODS}/"):
                return self._one(asked, parts.path.rpartition("/")[2])
            if asked.method in ("PATCH", "POST", "PUT"):
                made = asked.json()
                made["metadata"].setdefault("uid", str(uuid.uuid4()))
                self.others[parts.path] = made
                return 200 if asked.method == "PATCH" else 201, made
            if parts.path in self.others and asked.method in ("GET", "DELETE"):
                return 200, self.others[parts.path] if asked.method == "GET" else self.others.pop(parts.path)
        return status(404, "NotFound", f"{parts.path} not found")

    def _proxied(self, pod: str, path: str) -> tuple[int, Any]:
        """An answer of a pod, as the API server passes it on."""
        name, _, port = pod.partition(":")
        if self.no_proxy:
            return status(403, "Forbidden", f'pods "{pod}" is forbidden: cannot get resource "pods/proxy"')
        said = self.drivers.get(name, {}).get(path) if port == "4040" else None
        return (200, said) if said is not None else status(503, "ServiceUnavailable", "no endpoints available")

    def _pod_made(self, asked: Asked) -> tuple[int, Any]:
        said = asked.json()
        name = said["metadata"]["name"]
        if name in self.pods:
            self.refused += 1
            return status(409, "AlreadyExists", f'pods "{name}" already exists')
        return 201, self._create(said, "Pending")

    def _create(self, said: dict[str, Any], phase: str) -> dict[str, Any]:
        meta = {"uid": str(uuid.uuid4()), "resourceVersion": "1", "namespace": "default", "creationTimestamp": now()}
        pod = {**said, "kind": "Pod", "apiVersion": "v1", "status": {"phase": phase}}
        pod["metadata"] = {**said["metadata"], **meta}
        self.pods[pod["metadata"]["name"]] = pod
        return pod

    def _listed(self, query: dict[str, str]) -> dict[str, Any]:
        wanted = dict(part.split("=", 1) for part in query.get("labelSelector", "").split(",") if part)
        found = [
            pod
            for name, pod in sorted(self.pods.items())
            if name not in self.hidden and wanted.items() <= pod["metadata"].get("labels", {}).items()
        ]
        size = self.page or int(query.get("limit", "0")) or len(found) + 1
        start = int(query.get("continue", "0"))
        following = str(start + size) if start + size < len(found) else ""
        meta = {"resourceVersion": "7", **({"continue": following} if following else {})}
        return {"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": found[start : start + size]}

    def _log(self, name: str, query: dict[str, str]) -> tuple[int, Any] | tuple[int, bytes, dict[str, str]]:
        """Plain text; an error is a Status in JSON. Whole lines from the end, then at most ``limitBytes`` of them from
        their beginning, as the kubelet does it.
        """
        if self.no_logs:
            return status(403, "Forbidden", f'pods "{name}" is forbidden: cannot get resource "pods/log"')
        if name not in self.pods:
            return status(404, "NotFound", f'pods "{name}" not found')
        found = [one["name"] for one in self.pods[name]["status"].get("containerStatuses", ())]
        container = query.get("container", "")
        if container not in found if container else len(found) > 1:
            why = f"container {container} is not valid" if container else "a container name must be specified"
            return status(400, "BadRequest", f"{why} for pod {name}")
        lines = self.logs.get(name, b"").splitlines(keepends=True)[-int(query.get("tailLines", "0")) :]
        said = b"".join(lines)
        return 200, said[: int(query.get("limitBytes", len(said)))], {"Content-Type": "text/plain"}

    def _one(self, asked: Asked, name: str) -> tuple[int, Any]:
        if name not in self.pods:
            return status(404, "NotFound", f'pods "{name}" not found')
        if asked.method == "DELETE":
            json.loads(asked.body or b"{}")
            self.pods[name]["metadata"]["deletionTimestamp"] = now()
            return 200, self.pods[name] if self.dies_slowly else self.pods.pop(name)
        return 200, self.pods[name]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def status(code: int, reason: str, message: str) -> tuple[int, dict[str, Any]]:
    said = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    return code, {**said, "reason": reason, "code": code}
