"""The API of Kubernetes: driver pods with our labels, and the ways to be let in."""

from __future__ import annotations

import json
import os
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clusters.kubernetes import FakeKubernetes
from support.clusters.wire import MISCHIEF
from support.servers import certs

from coordd.adapters.cluster import kube_access
from coordd.adapters.cluster.kube_access import SETTINGS, Access
from coordd.adapters.cluster.kubernetes import Kubernetes
from coordd.core.jobs.applications import ALIVE, FAILED, SUCCEEDED, cluster_mark, labels, run_mark
from coordd.errors import UnavailableError

RUN = "nightly@2026-12-01T02:00:00Z"
MARK = run_mark("prod", RUN)
ENV = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}


@pytest.fixture
def api() -> Iterator[FakeKubernetes]:
    fake = FakeKubernetes()
    yield fake
    fake.close()


def client(
    fake: FakeKubernetes, conf: dict[str, str] | None = None, *, answer_s: float = 5.0, kept_s: float = 0.0
) -> Kubernetes:
    return Kubernetes(Access(f"k8s://{fake.url}", conf or {}, ENV), answer_s=answer_s, kept_s=kept_s)


def test_a_driver_pod_is_found_by_its_mark(api: FakeKubernetes) -> None:
    api.submit(f"{MARK}-0", labels("prod", RUN, 2, 42))
    api.submit("another", labels("prod", "hourly#1", 0, 1))
    api.submit("unlabelled", {})

    (found,) = client(api).find(MARK)

    assert (found.id, found.state, found.run_mark, found.attempt, found.token) == (f"{MARK}-0", ALIVE, MARK, 2, 42)
    assert abs(found.started_at - time.time()) < 60


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown", "New"])
def test_a_phase_that_is_no_end_counts_as_alive(api: FakeKubernetes, phase: str) -> None:
    api.submit("pod", labels("prod", RUN, 0, 1), phase)

    assert client(api).find(MARK)[0].state == ALIVE


def test_an_end_has_its_exit_code_and_its_reason(api: FakeKubernetes) -> None:
    api.submit("good", labels("prod", RUN, 0, 1))
    api.submit("bad", labels("prod", RUN, 1, 2))
    api.finish("good")
    api.finish("bad", 137, "killed for\nits memory, with password=hunter2")

    bad, good = client(api).find(MARK)

    assert (good.state, good.exit_code) == (SUCCEEDED, 0)
    assert (bad.state, bad.exit_code, bad.detail) == (FAILED, 137, "Error killed for its memory, with password=***")


@pytest.mark.parametrize(
    ("phase", "driver", "sidecar", "state", "code"),
    [
        ("Failed", {"terminated": {"exitCode": 0}}, {"terminated": {"exitCode": 1}}, SUCCEEDED, 0),
        ("Running", {"terminated": {"exitCode": 0}}, {"running": {}}, SUCCEEDED, 0),
        ("Running", {"terminated": {"exitCode": 3}}, {"running": {}}, FAILED, 3),
        ("Running", {"running": {}}, {"terminated": {"exitCode": 1}}, ALIVE, None),
        ("Pending", {"waiting": {}}, {"terminated": {"exitCode": 1}}, ALIVE, None),
        ("Failed", {"waiting": {}}, {"terminated": {"exitCode": 5}}, FAILED, None),
        ("Failed", {"terminated": {}}, {"terminated": {"exitCode": 0}}, FAILED, None),
    ],
)
def test_a_container_beside_the_driver_does_not_decide(
    api: FakeKubernetes, phase: str, driver: dict[str, Any], sidecar: dict[str, Any], state: str, code: int | None
) -> None:
    """Such as a proxy that admission has put into the pod."""
    api.submit("pod", labels("prod", RUN, 0, 1), phase)
    api.pods["pod"]["status"] = {
        "phase": phase,
        "containerStatuses": [
            {"name": "istio-proxy", "state": sidecar},
            {"name": "spark-kubernetes-driver", "state": driver},
        ],
    }

    (found,) = client(api).find(MARK)

    assert (found.state, found.exit_code) == (state, code)


LOG = (
    "26/11/29 09:00:00 INFO SparkContext: Running Spark version 4.3.0\n"
    "Traceback (most recent call last):\n"
    '  File "/opt/jobs/shops.py", line 3, in <module>\n'
    "pyspark.errors.AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] shops, with password=hunter2\n"
    "26/11/29 09:00:01 INFO ShutdownHookManager: Shutdown hook called\n"
)
TOLD = "pyspark.errors.AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] shops, with password=***"


def test_a_failure_has_the_telling_line_of_its_driver(api: FakeKubernetes) -> None:
    """A kubelet gives no message of Spark's driver: the reason was "Error"."""
    api.submit("pod", labels("prod", RUN, 0, 1))
    api.finish("pod", 1, says="x" * 200 + "\n" + "noise\n" * 5000 + LOG)

    (found,) = client(api).find(MARK)

    assert (found.state, found.exit_code, found.detail) == (FAILED, 1, f"Error: {TOLD}")
    assert client(api).of_cluster(cluster_mark("prod"))[0].detail == "Error", "the list of all reads no logs"


def test_the_log_is_that_of_the_drivers_container(api: FakeKubernetes) -> None:
    api.submit("pod", labels("prod", RUN, 0, 1))
    api.finish("pod", 1, says=LOG)
    api.pods["pod"]["status"]["containerStatuses"].append({"name": "istio-proxy", "state": {"running": {}}})

    assert client(api).find(MARK)[0].detail == f"Error: {TOLD}"


@pytest.mark.parametrize("away", ["no right", "gone", "nothing", "late", "garbage"])
def test_a_failure_whose_log_cannot_be_read_is_one_all_the_same(api: FakeKubernetes, away: str) -> None:
    api.submit("pod", labels("prod", RUN, 0, 1))
    api.finish("pod", 1, says="" if away == "nothing" else LOG)
    api.no_logs = away == "no right"

    def misbehave(asked: Any) -> None:
        if "/log?" in asked.path and away in ("late", "garbage"):
            api.mischief = {"late": "silent", "garbage": "failing"}[away]
        if "/log?" in asked.path and away == "gone":
            api.pods.clear()

    api.on_ask = misbehave
    (found,) = client(api, answer_s=1.0).find(MARK)

    told = ": its driver's log cannot be read, the account needs the verb get on pods/log" if away == "no right" else ""
    assert (found.state, found.exit_code, found.detail) == (FAILED, 1, f"Error{told}")


def test_only_a_few_logs_are_read(api: FakeKubernetes) -> None:
    """Of the newest attempts: the time for a look-up has a limit."""
    for attempt in range(6):
        api.submit(f"pod-{attempt}", labels("prod", RUN, attempt, attempt + 1))
        api.finish(f"pod-{attempt}", 1, says=LOG)

    details = [one.detail for one in client(api).find(MARK)]

    assert details == ["Error"] * 5 + [f"Error: {TOLD}"]


def test_pages_are_followed(api: FakeKubernetes) -> None:
    api.page = 2
    names = [api.submit(f"pod-{number}", labels("prod", RUN, number, number + 1)) for number in range(5)]

    assert [one.id for one in client(api).find(MARK)] == names
    assert len(client(api).of_cluster(cluster_mark("prod"))) == 5


@pytest.mark.parametrize("mischief", MISCHIEF)
def test_an_api_server_that_misbehaves_is_no_answer(api: FakeKubernetes, mischief: str) -> None:
    api.submit("pod", labels("prod", RUN, 0, 1))
    api.mischief = mischief

    with pytest.raises(UnavailableError) as caught:
        client(api, answer_s=1.0).find(MARK)

    assert f"127.0.0.1:{api.port}" in str(caught.value)


def test_a_driver_is_ended_and_one_that_is_gone_needs_no_end(api: FakeKubernetes) -> None:
    api.submit("pod", labels("prod", RUN, 0, 1))
    way = client(api)

    way.end("pod")
    way.end("pod")

    assert way.find(MARK) == []


def test_nothing_proves_how_long_pods_are_kept_but_the_sites_word(api: FakeKubernetes) -> None:
    since = time.time() - 3600

    assert "nothing says how long" in client(api).keeps_since(since)
    assert client(api, kept_s=7200.0).keeps_since(since) == ""
    assert "the submission is older" in client(api, kept_s=60.0).keeps_since(since)


# ---- who asks


def test_a_token_file_is_read_at_each_request(api: FakeKubernetes, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    api.bearer = "one"
    way = client(api, {f"{SETTINGS}oauthTokenFile": str(path)})
    assert way.find(MARK) == []

    api.bearer = "two"
    with pytest.raises(UnavailableError, match="found 401"):
        way.find(MARK)
    path.write_text("two\n")
    assert way.find(MARK) == []
    path.unlink()
    with pytest.raises(UnavailableError, match="token"):
        way.find(MARK)


def test_a_service_account_is_used_where_there_is_one(api: FakeKubernetes, tmp_path: Path) -> None:
    api.bearer = "account"
    (tmp_path / "token").write_text("account")

    access = Access(f"k8s://{api.url}", {}, ENV, account=str(tmp_path))

    assert Kubernetes(access, answer_s=5.0).find(MARK) == []


def in_kubeconfig(path: Path, url: str, namespace: str) -> dict[str, str]:
    """The environment with a kubeconfig (JSON) whose token is "mine"."""
    content = {
        "current-context": "here",
        "clusters": [{"name": "one", "cluster": {"server": url}}],
        "contexts": [{"name": "here", "context": {"cluster": "one", "user": "me", "namespace": namespace}}],
        "users": [{"name": "me", "user": {"token": "mine"}}],
    }
    path.write_text(json.dumps(content))
    return {**ENV, "KUBECONFIG": str(path)}


def test_where_spark_names_no_namespace_it_is_default(api: FakeKubernetes, tmp_path: Path) -> None:
    """Spark does not look at that of the kubeconfig's context."""
    env = in_kubeconfig(tmp_path / "config", api.url, "of-the-context")

    assert Access(f"k8s://{api.url}", {}, env, account="/nonexistent").namespace == "default"
    conf = {"spark.kubernetes.namespace": "mine"}
    assert Access(f"k8s://{api.url}", conf, env, account="/nonexistent").namespace == "mine"


def test_a_pods_token_is_not_sent_where_a_kubeconfig_says_who_asks(api: FakeKubernetes, tmp_path: Path) -> None:
    """As Spark's client: a daemon in a pod may submit to another cluster."""
    (tmp_path / "token").write_text("account")
    (tmp_path / "ca.crt").write_text("no certificate")
    env = in_kubeconfig(tmp_path / "config", api.url, "default")

    access = Access(f"k8s://{api.url}", {}, env, account=str(tmp_path))

    assert access.headers() == {"Authorization": "Bearer mine"}
    (tmp_path / "config").unlink()
    assert Access(f"k8s://{api.url}", {}, env, account=str(tmp_path)).headers() == {"Authorization": "Bearer account"}


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_a_kubeconfig_is_used(api: FakeKubernetes, tmp_path: Path, form: str) -> None:
    """YAML is read by kubectl; a stand-in prints what the real one prints."""
    api.bearer = "mine"
    env = {**ENV, **api.kubeconfig(tmp_path / "config", {"token": "mine"})}
    in_kubeconfig(tmp_path / "json", api.url, "default")
    if form == "json":
        (tmp_path / "json").rename(tmp_path / "config")
    else:
        (tmp_path / "kubectl").write_text(f"#!/bin/sh\ncat {tmp_path}/json\n")
        (tmp_path / "kubectl").chmod(0o755)
        env["PATH"] = f"{tmp_path}:{env['PATH']}"

    access = Access(f"k8s://{api.url}", {}, env, account="/nonexistent")

    assert Kubernetes(access, answer_s=5.0).find(MARK) == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{not json", "kubectl"),
        ('{"current-context": "gone"}', 'no context "gone"'),
        (
            """{"current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {}}], "users": [{"name": "u", "user": {"exec": {}}}]}""",
            "expected a command",
        ),
        (
            """{"current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {}}], "users": [{"name": "u", "user": {"auth-provider": {}}}]}""",
            "auth-provider",
        ),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "config").write_text(content)
    env = {**ENV, "KUBECONFIG": str(tmp_path / "config"), "PATH": str(tmp_path)}

    with pytest.raises(UnavailableError, match=expected):
        Access("k8s://http://127.0.0.1:1", {}, env, account="/nonexistent")


def test_certificates_are_verified(tmp_path: Path) -> None:
    own = certs.certificates(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(own.cert, own.key)
    fake = FakeKubernetes(tls)
    try:
        good = client(fake, {f"{SETTINGS}caCertFile": str(own.ca)})
        assert good.find(MARK) == []
        with pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            client(fake).find(MARK)
        assert client(fake, {"spark.kubernetes.trust.certificates": "true"}).find(MARK) == [], "as Spark's own client"
    finally:
        fake.close()


def test_certificates_inside_a_kubeconfig_are_used(tmp_path: Path) -> None:
    own = certs.certificates(tmp_path)
    user = {
        "client-certificate-data": b64encode(Path(own.cert).read_bytes()).decode(),
        "client-key-data": b64encode(Path(own.key).read_bytes()).decode(),
    }
    cluster = {"certificate-authority-data": b64encode(Path(own.ca).read_bytes()).decode()}
    content = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    (tmp_path / "config").write_text(json.dumps(content))
    fake = FakeKubernetes(certs.asking(own))
    try:
        env = {**ENV, "KUBECONFIG": str(tmp_path / "config")}
        assert Kubernetes(Access(f"k8s://{fake.url}", {}, env, account="/no"), answer_s=5.0).find(MARK) == []
    finally:
        fake.close()


def test_the_service_accounts_place_is_kubernetes_own() -> None:
    assert kube_access.ACCOUNT == "/var/run/secrets/kubernetes.io/serviceaccount"
