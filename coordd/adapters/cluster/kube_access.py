"""How to reach the API of Kubernetes: with Spark's own settings, by a kubeconfig, or as a pod's service account.

Spark's client tries the same places in this order: a service account's token is for the cluster that the pod is in, and
a kubeconfig may name another one. Like Spark it takes no namespace from either. A kubeconfig that is not JSON is read
by kubectl, which also merges several. Its user may log in by a plug-in (kube_login.py).
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any

from coordd.adapters.cluster.kube_login import Credential, Login
from coordd.errors import UnavailableError

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
SETTINGS = "spark.kubernetes.authenticate.submission."
TRUST = "spark.kubernetes.trust.certificates"  # Spark verifies no certificate then
KUBECTL_S = 15.0
FILE_BYTES_MAX = 1024 * 1024

NAMESPACE = "default"  # of Spark


class Access:
    """The address, the namespace, and how a request proves who asks."""

    def __init__(self, master: str, conf: Mapping[str, str], env: Mapping[str, str], account: str = ACCOUNT) -> None:
        """Raises UnavailableError: something that is named cannot be read."""
        address = master.removeprefix("k8s://")
        self.url = (address if "://" in address else f"https://{address}").rstrip("/")
        self._token_file, self._token = conf.get(f"{SETTINGS}oauthTokenFile", ""), conf.get(f"{SETTINGS}oauthToken", "")
        self._ca = conf.get(f"{SETTINGS}caCertFile", "")
        self._cert = conf.get(f"{SETTINGS}clientCertFile", "")
        self._key = conf.get(f"{SETTINGS}clientKeyFile", "")
        self._ca_data = self._cert_data = self._key_data = ""
        self._verified = conf.get(TRUST, "").lower() != "true"
        self._login: Login | None = None
        self._shown: Credential | None = None  # what the plug-in has given, and this object uses
        if not (self._token_file or self._token or self._cert):
            if config := kubeconfig(conf.get("spark.kubernetes.context", ""), env):
                self._use(config, env)
            elif os.path.exists(f"{account}/token"):
                self._token_file = f"{account}/token"
                self._ca = self._ca or f"{account}/ca.crt"
        self.namespace = conf.get("spark.kubernetes.namespace", "") or NAMESPACE
        self.tls = self._context() if self.url.startswith("https:") else None

    def headers(self) -> dict[str, str]:
        """Of each request; ask before ``tls``, which may be another one then. Tokens are renewed, so the file of one is
        read again. Raises UnavailableError.
        """
        if self._login is not None:
            self._show(self._login.credential())
        token = _text(self._token_file).strip() if self._token_file else self._token
        return {"Authorization": f"Bearer {token}"} if token else {}

    def is_renewed(self) -> bool:
        """The API has refused who asks. True if another try may be let in: a plug-in gives a new credential."""
        if self._login is None:
            return False
        self._login.refused()
        return True

    def _show(self, credential: Credential) -> None:
        """Use what the plug-in gives."""
        if credential == self._shown:
            return
        self._token, self._shown = credential.token, credential
        if credential.cert:
            self._cert_data, self._key_data = (
                base64.b64encode(text.encode()).decode() for text in (credential.cert, credential.key)
            )
            self.tls = self._context() if self.url.startswith("https:") else None

    def _use(self, config: Mapping[str, Any], env: Mapping[str, str]) -> None:
        """Take what a kubeconfig's current context says."""
        cluster, user = _of_current(config)
        if "exec" in user and not (user.get("token") or user.get("tokenFile")):  # as kubectl: a token counts more
            self._login = Login(user["exec"], cluster, self.url, _files(env), env)
        elif "auth-provider" in user:
            raise UnavailableError(
                "the kubeconfig's user logs in by an auth-provider, which Kubernetes itself has given up: expected an"
                f" exec with a command, or a token for Spark in {SETTINGS}oauthTokenFile, or a certificate"
            )
        self._token, self._token_file = str(user.get("token", "")), str(user.get("tokenFile", ""))
        self._cert, self._key = str(user.get("client-certificate", "")), str(user.get("client-key", ""))
        self._cert_data = str(user.get("client-certificate-data", ""))
        self._key_data = str(user.get("client-key-data", ""))
        self._ca = self._ca or str(cluster.get("certificate-authority", ""))
        self._ca_data = str(cluster.get("certificate-authority-data", ""))
        self._verified = self._verified and not cluster.get("insecure-skip-tls-verify", False)

    def _context(self) -> ssl.SSLContext:
        try:
            authorities = base64.b64decode(self._ca_data).decode() if self._ca_data and not self._ca else None
            context = ssl.create_default_context(cafile=self._ca or None, cadata=authorities)
            if not self._verified:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self._cert_data:
                self._load(context)
            elif self._cert:
                context.load_cert_chain(self._cert, self._key or None)
        except (OSError, ValueError) as exc:  # an ssl.SSLError is an OSError
            raise UnavailableError(f"{self.url}: certificates of the cluster or of the client: {exc}") from exc
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        """OpenSSL reads a client's certificate from a file only."""
        with tempfile.NamedTemporaryFile(prefix="coordd-", suffix=".pem") as file:  # mode 0600
            file.write(base64.b64decode(self._cert_data) + b"\n" + base64.b64decode(self._key_data))
            file.flush()
            context.load_cert_chain(file.name)


def kubeconfig(context: str, env: Mapping[str, str]) -> dict[str, Any]:
    """The kubeconfig of this environment; {} if there is none. Raises UnavailableError when it cannot be read."""
    places = _places(env)
    if not _files(env):
        return {}
    try:
        config = json.loads(_text(places))
    except (ValueError, UnavailableError):
        config = _by_kubectl(places, env)
    if not isinstance(config, dict):
        raise UnavailableError(f"{places}: expected a kubeconfig")
    return {**config, "current-context": context} if context else config


def _places(env: Mapping[str, str]) -> str:
    return env.get("KUBECONFIG", "") or os.path.join(env.get("HOME", "/"), ".kube", "config")


def _files(env: Mapping[str, str]) -> list[str]:
    """The files of the kubeconfig that are there."""
    return [path for path in _places(env).split(":") if os.path.exists(path)]


def _by_kubectl(places: str, env: Mapping[str, str]) -> Any:
    argv = ["kubectl", "config", "view", "--raw", "--output", "json"]
    try:
        done = subprocess.run(
            argv, env={**env, "KUBECONFIG": places}, capture_output=True, timeout=KUBECTL_S, check=False
        )
        if done.returncode:
            raise UnavailableError(f"{places}: {' '.join(argv)}: {done.stderr.decode(errors='replace').strip()[:200]}")
        return json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as exc:
        raise UnavailableError(
            f"{places}: a kubeconfig that is not JSON is read with kubectl, and that failed ({exc}): install kubectl,"
            f" or give Spark a token in {SETTINGS}oauthTokenFile"
        ) from exc


def _of_current(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Cluster and user that are in use. Raises UnavailableError."""

    def named(kind: str, name: str) -> dict[str, Any]:
        for entry in config.get(f"{kind}s") or []:
            if isinstance(entry, dict) and entry.get("name") == name:
                return dict(entry.get(kind) or {})
        raise UnavailableError(f'the kubeconfig has no {kind} "{name}"')

    current = str(config.get("current-context") or "")
    if not current:
        return {}, {}
    context = named("context", current)
    return named("cluster", str(context.get("cluster"))), named("user", str(context.get("user")))


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(FILE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as exc:
        raise UnavailableError(f"{path}: {exc}") from exc
