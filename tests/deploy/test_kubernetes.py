"""The example for Kubernetes, as far as it can be checked without a cluster: schemas, settings, job, commands."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from coordd.adapters import onhost
from coordd.cli.coordctl import program
from coordd.config.jobfile import load_job
from coordd.config.keyring import render
from coordd.config.settings import read_config
from coordd.config.values import parse_size
from coordd.core.wire.envelope import SIGN, Key, Keyring

EXAMPLE = Path(__file__).parents[2] / "deploy/kubernetes/coordd.yaml"
VERSIONS = ("1.28", "1.31")

DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all(EXAMPLE.read_text()))
OF = {document["kind"]: document for document in DOCUMENTS}
POD = OF["StatefulSet"]["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document["kind"])
def test_each_document_fits_the_schema(document: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


def test_a_document_with_an_unknown_field_does_not() -> None:
    wrong = {**OF["Service"], "spec": {**OF["Service"]["spec"], "selectors": {}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_the_configuration_lacks_nothing_but_its_secrets(tmp_path: Path) -> None:
    text = OF["ConfigMap"]["data"]["coordd.toml"]
    path = tmp_path / "coordd.toml"
    path.write_text(text)
    _, problems = read_config(str(path), {})

    assert {problem.key for problem in problems} == {
        "cluster.bus_password_file", "cluster.ledger_password_file", "cluster.keyring"
    }  # fmt: skip
    mounted = {mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    cluster = tomllib.loads(text)["cluster"]
    for key in ("bus_password_file", "ledger_password_file", "keyring"):
        assert str(Path(cluster[key]).parent) in mounted


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a directory to others")
@pytest.mark.parametrize("mode", [0o2775, 0o2777, 0o777, 0o755], ids=oct)
def test_the_service_trusts_what_the_init_container_leaves_of_the_volumes(mode: int) -> None:
    """kubelet gives the root of a volume to root, and with fsGroup to its group, who may write then, as in emptyDir all
    may: the daemon refuses such a state_dir, and secrets in such a directory.
    """
    assert "fsGroup" not in POD["securityContext"]
    (init,) = POD["initContainers"]
    assert init["securityContext"] == {"runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": False}
    places = {mount["name"]: mount["mountPath"] for mount in [*CONTAINER["volumeMounts"], *init["volumeMounts"]]}
    uid, gid = POD["securityContext"]["runAsUser"], POD["securityContext"]["runAsGroup"]
    service = pwd.struct_passwd(("coordd", "x", uid, gid, "", "/", "/bin/false"))
    with tempfile.TemporaryDirectory(prefix="cdk-") as directory:
        root = Path(directory)
        root.chmod(0o755)
        shell, settings = init["command"][-1], OF["ConfigMap"]["data"]["coordd.toml"]
        for name in ("own", "state", "secret"):  # a path before its beginning
            (root / name).mkdir()
            (root / name).chmod(mode)
            shell = shell.replace(places[name], f"{root}/{name}")
        ring = Keyring((Key("k1", SIGN, b"x" * 32),))
        for name, text in (("keys.toml", render(ring)), ("bus.password", "b"), ("ledger.password", "l")):
            (root / "secret" / name).write_text(text)
            (root / "secret" / name).chmod(0o400)
        file = root / "coordd.toml"
        file.write_text(settings.replace(places["own"], f"{root}/own"))
        environ = {"COORDD_NODE_STATE_DIR": f"{root}/state"}
        for _ in range(2):  # a container that is started again finds its own work
            subprocess.run([*init["command"][:-1], shell], check=True, timeout=60)
            assert onhost.as_user(service, lambda: read_config(str(file), environ)[1]) == []
            assert onhost.as_user(service, lambda: os.access(root / "state", os.W_OK | os.X_OK))


def test_journal_and_logs_fit_into_the_volume(tmp_path: Path) -> None:
    path = tmp_path / "coordd.toml"
    path.write_text(
        "[history]\n" + OF["ConfigMap"]["data"]["coordd.toml"].partition("[history]\n")[2].partition("\n[")[0]
    )
    config, _ = read_config(str(path), {})
    assert config is not None
    (claim,) = OF["StatefulSet"]["spec"]["volumeClaimTemplates"]
    room = parse_size(claim["spec"]["resources"]["requests"]["storage"].removesuffix("i"))
    used = parse_size(config.history.journal_size) + parse_size(config.history.logs_size)
    assert used <= 0.9 * room


def test_the_job_is_one(tmp_path: Path) -> None:
    (tmp_path / "hello.toml").write_text(OF["ConfigMap"]["data"]["hello.toml"])
    (tmp_path / "coordd.toml").write_text("")
    config, _ = read_config(str(tmp_path / "coordd.toml"), {})
    assert config is not None

    assert load_job(str(tmp_path / "hello.toml"), config)[1] == []


def test_it_drains_before_it_stops_and_has_the_time_for_it() -> None:
    drain = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    done = CliRunner().invoke(program, [*drain[1:], "--socket", "/none/such"], prog_name="coordctl")

    assert done.exit_code == 69, "the command is one, and only the daemon is missing"
    assert drain[drain.index("--timeout") + 1] == "14m"
    assert POD["terminationGracePeriodSeconds"] > 14 * 60


@pytest.mark.parametrize(("note", "resumed"), [("pod stops", True), ("disk is replaced", False), (None, False)])
def test_a_pod_that_is_back_ends_its_own_drain_alone(tmp_path: Path, note: str | None, resumed: bool) -> None:
    status = json.dumps({"state": "draining", "drained": {"note": note} if note else None}, indent=2)
    fake = tmp_path / "coordctl"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncat <<"E"\n{status}\nE\n')
    fake.chmod(0o755)
    command = CONTAINER["lifecycle"]["postStart"]["exec"]["command"]
    subprocess.run(command, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True, timeout=60)

    assert ("node resume" in (tmp_path / "calls").read_text()) == resumed


def test_probes_ask_what_the_listener_answers() -> None:
    listen = tomllib.loads(OF["ConfigMap"]["data"]["coordd.toml"])["metrics"]["listen"]
    assert listen.endswith(f":{CONTAINER['ports'][0]['containerPort']}")
    assert CONTAINER["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert CONTAINER["readinessProbe"]["httpGet"]["path"] == "/readyz"
