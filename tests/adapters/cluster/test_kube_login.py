"""A kubeconfig whose user logs in by a command: called as Kubernetes says, kept, called again, named if it fails."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clusters.kube_login import V1, V1BETA1, Plugin
from support.clusters.kubernetes import FakeKubernetes
from support.servers import certs

from coordd.adapters.cluster import kube_login
from coordd.adapters.cluster.kube_access import Access
from coordd.adapters.cluster.kubernetes import Kubernetes
from coordd.core.jobs.applications import labels, run_mark
from coordd.errors import UnavailableError

RUN = "nightly@2026-12-01T02:00:00Z"
MARK = run_mark("prod", RUN)
LONG_AGO, LATER = "2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z"


@pytest.fixture
def api() -> Iterator[FakeKubernetes]:
    fake = FakeKubernetes(bearer="first")
    fake.submit(f"{MARK}-0", labels("prod", RUN, 0, 42))
    yield fake
    fake.close()


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


def found(access: Access) -> list[str]:
    return [one.id for one in Kubernetes(access, answer_s=5.0).find(MARK)]


@pytest.mark.parametrize("version", [V1, V1BETA1])
def test_the_command_says_who_asks(api: FakeKubernetes, plugin: Plugin, version: str) -> None:
    plugin.answers("first", version, expirationTimestamp=LATER)
    env = [{"name": "PROFILE", "value": "spark"}]

    access = plugin.access(api.url, apiVersion=version, args=["--cluster", "one"], env=env)

    assert found(access) == [f"{MARK}-0"]
    assert plugin.calls() == ["--cluster one"]
    assert (plugin.directory / "profile").read_text() == "spark"
    assert plugin.told() == {"kind": "ExecCredential", "apiVersion": version, "spec": {"interactive": False}}


def test_a_command_that_wants_to_know_the_cluster_is_told(api: FakeKubernetes, plugin: Plugin) -> None:
    plugin.answers("first")
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "spark"}}
    cluster = {"certificate-authority-data": "QUJD", "extensions": [{"name": "other", "extension": 1}, extension]}

    found(plugin.access(api.url, cluster, provideClusterInfo=True))

    told = {"server": api.url, "certificate-authority-data": "QUJD", "config": {"audience": "spark"}}
    assert plugin.told()["spec"] == {"interactive": False, "cluster": told}


def test_a_command_is_found_beside_its_kubeconfig_and_on_the_path(api: FakeKubernetes, plugin: Plugin) -> None:
    plugin.answers("first")

    assert found(plugin.access(api.url, command="./get-token"))
    with pytest.raises(UnavailableError, match="get-token is not installed: get it from your provider"):
        found(plugin.access(api.url, command="get-token", installHint="get it from your provider\n"))


def test_a_credential_is_kept_until_it_expires(api: FakeKubernetes, plugin: Plugin) -> None:
    plugin.answers("first", expirationTimestamp=LATER)
    found(plugin.access(api.url))
    found(plugin.again(api.url))
    assert len(plugin.calls()) == 1

    plugin.answers("first", expirationTimestamp=LONG_AGO)
    access = plugin.access(api.url, args=["--another"])
    found(access)
    found(access)
    assert len(plugin.calls()) == 3


def test_a_credential_that_is_refused_is_replaced_once(api: FakeKubernetes, plugin: Plugin) -> None:
    plugin.answers("first")
    access = plugin.access(api.url)
    assert found(access)
    api.bearer = "second"
    plugin.answers("second")

    assert found(access)

    assert len(plugin.calls()) == 2
    api.bearer = "third"
    with pytest.raises(UnavailableError, match="expected to be let in, found 401"):
        found(access)
    assert len(plugin.calls()) == 3


def test_a_certificate_that_a_command_prints_is_used(plugin: Plugin) -> None:
    own = certs.certificates(plugin.directory)
    fake = FakeKubernetes(certs.asking(own))
    try:
        fake.submit(f"{MARK}-0", labels("prod", RUN, 0, 42))
        plugin.answers(clientCertificateData=Path(own.cert).read_text(), clientKeyData=Path(own.key).read_text())

        assert found(plugin.access(fake.url, {"certificate-authority": str(own.ca)})) == [f"{MARK}-0"]
    finally:
        fake.close()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("not JSON", "expected an ExecCredential"),
        ("[]", "expected an ExecCredential"),
        (json.dumps({"kind": "ExecCredential", "apiVersion": V1BETA1, "status": {"token": "x"}}), "apiVersion"),
        (json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": {}}), "neither a token nor a certificate"),
        (json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": {"clientKeyData": "secret"}}), "neither"),
        (
            json.dumps(
                {"kind": "ExecCredential", "apiVersion": V1, "status": {"token": "secret", "expirationTimestamp": "x"}}
            ),
            "isoformat",
        ),
    ],
)
def test_an_answer_that_is_no_credential_is_named_and_not_shown(
    api: FakeKubernetes, plugin: Plugin, answer: str, expected: str
) -> None:
    (plugin.directory / "answer").write_text(answer)

    with pytest.raises(UnavailableError, match=expected) as caught:
        found(plugin.access(api.url))

    assert "secret" not in str(caught.value)


def test_a_command_that_fails_is_named_with_its_last_words(api: FakeKubernetes, plugin: Plugin) -> None:
    (plugin.directory / "code").write_text("3")

    with pytest.raises(UnavailableError, match=r"get-token ended with 3: no session, password=(?!hunter2)"):
        found(plugin.access(api.url))


def test_a_word_with_a_nul_is_named(api: FakeKubernetes, plugin: Plugin) -> None:
    with pytest.raises(UnavailableError, match="null byte"):
        found(plugin.access(api.url, args=["a\0b"]))


def test_a_command_that_hangs_is_ended(api: FakeKubernetes, plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_login, "LOGIN_S", 0.5)

    with pytest.raises(UnavailableError, match=r"timed out after 0\.5 seconds"):
        found(plugin.access(api.url, command="/bin/sleep", args=["60"]))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"interactiveMode": "Always"}, "asks a person"),
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "v1alpha1"),
        ({"command": ""}, "expected a command"),
        ({"command": ["x"]}, "expected a command"),
    ],
)
def test_a_command_that_cannot_be_called_is_named(
    api: FakeKubernetes, plugin: Plugin, said: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UnavailableError, match=expected):
        plugin.access(api.url, **said)


@pytest.mark.parametrize("wrong", [{"args": "x"}, {"env": ["x"]}, {"env": {"x": 1}}, {"env": [{"value": "x"}]}])
def test_what_is_of_the_wrong_kind_is_left_out(api: FakeKubernetes, plugin: Plugin, wrong: dict[str, Any]) -> None:
    plugin.answers("first")

    assert found(plugin.access(api.url, **wrong)) == [f"{MARK}-0"]


def test_a_command_is_not_called_where_another_user_may_have_named_it(api: FakeKubernetes, plugin: Plugin) -> None:
    """The daemon looks up as its own user, by the kubeconfig of a job: that one may not make it run anything."""
    assert os.getuid() == 0, "the tests need root, to give a file to somebody else"
    plugin.answers("first")
    plugin.access(api.url)
    plugin.config.chmod(0o664)
    with pytest.raises(UnavailableError, match=r"can write .*config.*chmod go-w"):
        plugin.again(api.url)
    plugin.config.chmod(0o644)
    os.chown(plugin.config, 65534, -1)
    with pytest.raises(UnavailableError, match="config belongs to nobody"):
        plugin.again(api.url)
    os.chown(plugin.config, 0, -1)
    (plugin.directory / "get-token").chmod(0o777)
    with pytest.raises(UnavailableError, match=r"everybody can write .*get-token"):
        found(plugin.again(api.url))
    assert plugin.calls() == []

    (plugin.directory / "get-token").chmod(0o755)
    assert found(plugin.again(api.url)) == [f"{MARK}-0"]
