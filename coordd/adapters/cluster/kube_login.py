"""Log-in plug-ins of a kubeconfig (`exec`): a command that prints a token or a certificate. Cloud providers have them.

The protocol is Kubernetes' own (client.authentication.k8s.io): the variable KUBERNETES_EXEC_INFO tells the command what
is wanted, and it prints an ExecCredential as JSON. A credential is used until it expires, or until the API refuses it.

A daemon looks up applications as its own user, by the kubeconfig that a job's environment names. So it calls a command
only if nobody but this user and root could have changed that command, or the file that names it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from coordd.config import ownership
from coordd.core.redaction import redact_text
from coordd.errors import UnavailableError

GROUP = "client.authentication.k8s.io/"
VERSIONS = (f"{GROUP}v1", f"{GROUP}v1beta1")

# The command ends within this time (seconds). An expired credential is replaced this much earlier.
LOGIN_S = 30.0
EARLY_S = 10.0

# The credentials of up to this many plug-ins are kept.
KEPT_MAX = 50


class Credential(NamedTuple):
    """What a plug-in has printed. ``cert``, ``key``: PEM. ``until``: Unix seconds; infinite: until it is refused."""

    token: str
    cert: str
    key: str
    until: float


_kept: dict[str, Credential] = {}
_lock = threading.Lock()


class Login:
    """The plug-in of one user in a kubeconfig, for one cluster."""

    def __init__(
        self, said: object, cluster: Mapping[str, Any], server: str, places: Sequence[str], env: Mapping[str, str]
    ) -> None:
        """``said``: the user's `exec`. ``places``: the files of the kubeconfig. Raises UnavailableError: it cannot be
        called, or not because of these files.
        """
        self.place = ":".join(places)
        said = said if isinstance(said, dict) else {}
        self._version = said.get("apiVersion") or VERSIONS[0]
        command = said.get("command")
        if not isinstance(command, str) or not command or self._version not in VERSIONS:
            raise UnavailableError(
                f"{self.place}: the exec of its user: expected a command, and an apiVersion of {', '.join(VERSIONS)};"
                f" found command {command!r}, apiVersion {self._version!r}"
            )
        if said.get("interactiveMode") == "Always":
            raise UnavailableError(f"{self.place}: {command} asks a person to log in: coordd needs one that does not")
        for path in places:
            self._check(path, command)
        if os.sep in command and not os.path.isabs(command):
            command = os.path.join(os.path.dirname(os.path.abspath(places[0])), command)
        args = said.get("args")
        self.argv = (command, *map(str, args if isinstance(args, list) else ()))
        more = {str(one["name"]): str(one.get("value", "")) for one in _entries(said.get("env")) if "name" in one}
        spec: dict[str, Any] = {"interactive": False}
        if said.get("provideClusterInfo"):
            spec["cluster"] = _as_told(cluster, server)
        told = {"kind": "ExecCredential", "apiVersion": self._version, "spec": spec}
        self._env = {**env, **more, "KUBERNETES_EXEC_INFO": json.dumps(told)}
        self._hint = str(said.get("installHint") or "")[:500].strip()
        self._key = json.dumps([self.argv, sorted(self._env.items())])

    def credential(self) -> Credential:
        """The one that is kept, or a new one. Raises UnavailableError."""
        with _lock:
            known = _kept.get(self._key)
        if known is not None and time.time() < known.until - EARLY_S:
            return known
        fresh = self._read(self._call())
        with _lock:
            _kept.pop(self._key, None)
            _kept[self._key] = fresh
            while len(_kept) > KEPT_MAX:
                del _kept[next(iter(_kept))]
        return fresh

    def refused(self) -> None:
        """The API did not take the credential: the next one is new."""
        with _lock:
            _kept.pop(self._key, None)

    def _call(self) -> bytes:
        command = self.argv[0]
        program = shutil.which(command, path=self._env.get("PATH", os.defpath))
        if program is None:
            hint = f": {self._hint}" if self._hint else ""
            raise UnavailableError(f"{self.place}: the log-in command {command} is not installed{hint}")
        self._check(program, command)
        try:
            done = subprocess.run(
                self.argv, env=self._env, stdin=subprocess.DEVNULL, capture_output=True, timeout=LOGIN_S, check=False
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as exc:  # ValueError: a NUL in a word
            raise UnavailableError(f"{self.place}: the log-in command {command}: {exc}") from exc
        if done.returncode:
            said = redact_text(done.stderr.decode(errors="replace").strip()[-200:])
            raise UnavailableError(f"{self.place}: the log-in command {command} ended with {done.returncode}: {said}")
        return done.stdout

    def _check(self, path: str, command: str) -> None:
        if fault := ownership.fault(path):
            raise UnavailableError(f"{self.place}: its log-in command {command} is not called: {fault}")

    def _read(self, text: bytes) -> Credential:
        try:
            content = json.loads(text)
            status = content["status"]
            if content.get("kind") != "ExecCredential" or content.get("apiVersion") != self._version:
                raise ValueError(f"kind {content.get('kind')!r:.60}, apiVersion {content.get('apiVersion')!r:.60}")
            token, cert, key = (
                str(status.get(name) or "") for name in ("token", "clientCertificateData", "clientKeyData")
            )
            if not token and not (cert and key):
                raise ValueError("neither a token nor a certificate with its key")
            return Credential(token, cert, key, _instant(status.get("expirationTimestamp")))
        except (KeyError, TypeError, AttributeError, ValueError) as exc:
            raise UnavailableError(  # what it has printed may be a secret
                f"{self.place}: the log-in command {self.argv[0]}: expected an ExecCredential of {self._version} with a"
                f" token or a certificate, found {exc}"
            ) from None


def _as_told(cluster: Mapping[str, Any], server: str) -> dict[str, Any]:
    """The cluster, as a plug-in is told of it."""
    names = ("certificate-authority-data", "insecure-skip-tls-verify", "proxy-url", "tls-server-name")
    extensions = _entries(cluster.get("extensions"))
    config = [one.get("extension") for one in extensions if one.get("name") == f"{GROUP}exec"]
    kept = {name: cluster[name] for name in names if name in cluster}
    return {**kept, "server": server, **({"config": config[0]} if config else {})}


def _instant(text: object) -> float:
    """When a credential expires, in Unix seconds. Raises ValueError."""
    if text in (None, ""):
        return float("inf")
    at = datetime.fromisoformat(str(text))
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _entries(value: object) -> list[dict[str, Any]]:
    """The tables of a list; a kubeconfig that is wrong may have something else there."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
