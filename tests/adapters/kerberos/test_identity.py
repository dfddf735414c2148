"""Keytabs and ticket caches of a real KDC; and damaged ones."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from support.servers.kdc import REALM, Kdc
from support.small_cluster import Lone

from coordd.adapters.kerberos import files, identity
from coordd.config import ownership
from coordd.config.sections import Config, SparkConfig
from coordd.core.jobs.job import Job, SparkSubmit
from coordd.core.ledger.words import AttemptNumber, Token
from coordd.core.ready import Launch
from coordd.errors import UnavailableError
from coordd.launching import LaunchBuilder
from coordd.services.checks.startable import Startable


class Realm:
    """What the tests share: making it takes a second."""

    def __init__(self, kdc: Kdc) -> None:
        self.kdc = kdc
        self.keytab = kdc.keytab("etl.keytab", "etl", "svc/edge-1.example")
        self.cache = kdc.ticket("cache", self.keytab, "etl")
        self.hadoop = kdc.hadoop()

    def env(self, **more: str) -> dict[str, str]:
        return {"HADOOP_CONF_DIR": str(self.hadoop), "KRB5CCNAME": f"FILE:{self.cache}", **more}


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with Kdc(tmp_path_factory.mktemp("kdc") / "kdc") as kdc:
        yield Realm(kdc)


def keytab_job(realm: Realm, principal: str) -> SparkSubmit:
    return SparkSubmit("/a.py", keytab=str(realm.keytab), principal=principal)


def test_the_principals_of_a_real_keytab_are_read(realm: Realm) -> None:
    assert files.principals(str(realm.keytab)) == [f"etl@{REALM}", f"svc/edge-1.example@{REALM}"]
    holed = realm.kdc.keytab("holed.keytab", "gone", "stays")
    realm.kdc.run("kadmin.local", "-r", REALM, "-q", f"ktremove -k {holed} gone all")
    assert files.principals(str(holed)) == [f"stays@{REALM}"]


@pytest.mark.parametrize("principal", [f"etl@{REALM}", "etl", f"svc/edge-1.example@{REALM}"])
def test_a_principal_with_a_key_is_in_order(realm: Realm, principal: str) -> None:
    assert identity.problem(keytab_job(realm, principal), "yarn", {}, "", 0.0) == ""


@pytest.mark.parametrize("principal", [f"bob@{REALM}", "etl@OTHER", "svc", "etl/edge-1"])
def test_a_principal_without_a_key_is_named_with_those_that_have_one(realm: Realm, principal: str) -> None:
    why = identity.problem(keytab_job(realm, principal), "yarn", {}, "", 0.0)

    assert why == (
        f"spark.principal: {realm.keytab} has no key of {principal}; it has keys of etl@{REALM}, "
        f"svc/edge-1.example@{REALM}"
    )


@pytest.mark.parametrize("cut", [0, 1, 3, 10, 40])
def test_a_damaged_keytab_is_named(realm: Realm, tmp_path: Path, cut: int) -> None:
    whole = realm.keytab.read_bytes()
    bad = tmp_path / "bad"
    bad.write_bytes(whole[:cut] if cut else b"PK\x03\x04" + whole)
    why = identity.problem(SparkSubmit("/a.py", keytab=str(bad), principal="etl"), "yarn", {}, "", 0.0)

    assert "is not a keytab" in why if cut != 3 else "has no key of etl; it has keys of nobody" in why


def test_a_valid_ticket_is_in_order_until_it_expires(realm: Realm) -> None:
    job, now = SparkSubmit("/a.py"), time.time()
    me = pwd.getpwuid(os.getuid()).pw_name

    assert identity.problem(job, "yarn", realm.env(), "", now) == ""
    why = identity.problem(job, "yarn", realm.env(), "", now + 7200)
    assert f"the ticket of etl@{REALM} in {realm.cache} expired at 20" in why
    assert f"kinit -c {realm.cache} as {me}" in why
    [ticket] = [one for one in files.tickets(str(realm.cache)) if one.granting]
    assert now + 3500 < ticket.ends_at < now + 3700
    by_path = identity.problem(job, "yarn", realm.env(KRB5CCNAME=str(realm.cache)), "", now + 7200)
    assert by_path == why


def test_an_absent_ticket_is_named(realm: Realm, tmp_path: Path) -> None:
    job, now = SparkSubmit("/a.py"), time.time()
    (tmp_path / "torn").write_bytes(realm.cache.read_bytes()[:-5])
    (tmp_path / "empty").write_bytes(b"")

    for name, said in (("none", "is not there"), ("torn", "is not a ticket cache"), ("empty", "is not a ticket cache")):
        assert said in identity.problem(job, "yarn", realm.env(KRB5CCNAME=f"FILE:{tmp_path}/{name}"), "", now)
    assert "Java reads tickets of files only" in identity.problem(job, "yarn", realm.env(KRB5CCNAME="KCM:"), "", now)
    assert identity.cache({}, 4711) == "/tmp/krb5cc_4711"


def test_only_a_job_that_cannot_do_without_is_kept_from_starting(realm: Realm, tmp_path: Path) -> None:
    gone = realm.env(KRB5CCNAME=str(tmp_path / "none"))
    simple = tmp_path / "simple"
    simple.mkdir()
    (simple / "core-site.xml").write_text(
        "<configuration><property><name>hadoop.security.authentication</name><value>simple</value></property>"
        "<property><name>other</name><value>kerberos</value></property></configuration>"
    )

    def refused(launch: SparkSubmit, master: str = "yarn", **env: str) -> bool:
        return bool(identity.problem(launch, master, {**gone, **env}, "", time.time()))

    assert refused(SparkSubmit("/a.py"))
    assert refused(SparkSubmit("/a.py", proxy_user="bob"), "local[2]")
    assert refused(SparkSubmit("/a.py"), HADOOP_CONF_DIR="", YARN_CONF_DIR=str(realm.hadoop))
    assert not refused(SparkSubmit("/a.py"), "local[2]")
    assert not refused(SparkSubmit("/a.py"), HADOOP_CONF_DIR=str(simple))
    assert not refused(SparkSubmit("/a.py"), HADOOP_CONF_DIR="")
    assert not refused(SparkSubmit("/a.py"), HADOOP_CONF_DIR=str(tmp_path / "none"))
    assert not refused(SparkSubmit("/a.py", conf={"spark.kerberos.keytab": "/k"}))
    assert not refused(SparkSubmit("/a.py", properties_file="/p"))


def test_a_look_up_at_a_resource_manager_that_wants_kerberos_needs_a_ticket_beside_the_keytab(
    realm: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conf_dir(name: str, **settings: str) -> str:
        (tmp_path / name).mkdir()
        lines = [f"<property><name>{key}</name><value>{value}</value></property>" for key, value in settings.items()]
        (tmp_path / name / "core-site.xml").write_text(f"<configuration>{''.join(lines)}</configuration>")
        return str(tmp_path / name)

    kerberos = {"hadoop.security.authentication": "kerberos"}
    spnego = conf_dir("spnego", **kerberos, **{"hadoop.http.authentication.type": "kerberos"})
    http = conf_dir("http", **kerberos, **{"hadoop.http.authentication.type": "simple"})
    unsaid = conf_dir("unsaid", **kerberos)

    def why(launch: SparkSubmit, master: str = "yarn", conf: str = spnego, ticket: bool = False) -> str:
        env = {"HADOOP_CONF_DIR": conf, "KRB5CCNAME": str(realm.cache if ticket else tmp_path / "none")}
        return identity.problem(launch, master, env, "", time.time())

    far = SparkSubmit("/a.py", deploy_mode="cluster", keytab=str(realm.keytab), principal="etl")
    by_conf = SparkSubmit("/a.py", deploy_mode="cluster", conf={"spark.kerberos.keytab": str(realm.keytab)})

    for launch in (far, by_conf):
        said = why(launch)
        assert said.startswith("the look-up of its application needs a ticket too, beside the keytab: ")
        assert f"{tmp_path}/none is not there; kinit -c {tmp_path}/none as " in said
        assert "give the job a keytab" not in said
        assert why(launch, ticket=True) == ""
        assert [why(launch, conf=conf) for conf in (http, unsaid)] == ["", ""], "its REST interface asks nobody"
    assert why(keytab_job(realm, "etl")) == "", "in client mode nothing is looked up"
    assert why(far, "k8s://https://api") == ""
    # curl finds tickets where Kerberos' own configuration says, as on Fedora and RHEL; Java does not look there.
    (tmp_path / "krb5.d").mkdir()
    (tmp_path / "krb5.conf").write_text(f"[libdefaults]\n  # default_ccache_name = X:\nincludedir {tmp_path}/krb5.d\n")
    monkeypatch.setattr(identity, "cache", lambda env, _: env.get("KRB5CCNAME", str(tmp_path / "none")))
    env = {"HADOOP_CONF_DIR": spnego, "KRB5_CONFIG": str(tmp_path / "krb5.conf")}
    assert "none is not there" in identity.problem(far, "yarn", env, "", time.time())
    (tmp_path / "krb5.d/kcm_default_ccache").write_text("[libdefaults]\n    default_ccache_name = KCM:\n")
    assert identity.problem(far, "yarn", env, "", time.time()) == ""
    assert "none is not there" in identity.problem(SparkSubmit("/a.py"), "yarn", env, "", time.time())
    named = {**env, "KRB5CCNAME": str(tmp_path / "none")}
    assert "none is not there" in identity.problem(far, "yarn", named, "", time.time())
    bad = SparkSubmit("/a.py", deploy_mode="cluster", keytab=str(realm.keytab), principal="bob")
    assert why(bad).startswith("spark.principal: "), "first things first"


def test_doctor_names_a_keytab_for_everybody_and_a_job_without_a_ticket(
    realm: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_: None)
    job = keytab_job(realm, "etl")
    os.chmod(realm.keytab, 0o640)
    assert identity.remarks(job, realm.env(), "", 0.0) == []
    os.chmod(realm.keytab, 0o644)
    [(text, advice)] = identity.remarks(job, realm.env(), "", 0.0)
    assert text == f"{realm.keytab} has mode 0644: every user of this machine can become etl"
    assert advice.startswith(f"chmod 600 {realm.keytab}")

    said = identity.remarks(SparkSubmit("/a.py"), realm.env(KRB5CCNAME=str(tmp_path / "none")), "", time.time())
    assert [text.partition(":")[0] for text, _ in said] == [
        f"Hadoop asks for Kerberos, and {pwd.getpwuid(os.getuid()).pw_name} has no ticket",
        "kinit is not on this machine",
    ]


def test_a_node_says_so_before_a_launch(realm: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "spark"
    (home / "bin").mkdir(parents=True)
    for program in ("spark-submit", "java"):
        (home / "bin" / program).write_text("#!/bin/sh\n")
        (home / "bin" / program).chmod(0o755)
    monkeypatch.setattr(ownership, "fault", lambda *_: "")
    env = {**realm.env(KRB5CCNAME=str(tmp_path / "none")), "SPARK_HOME": str(home), "JAVA_HOME": str(home)}
    config = Config(spark=SparkConfig(env=env))
    launches = {
        "bad": SparkSubmit("hdfs:///a.py", keytab=str(realm.keytab), principal="bob"),
        "far": SparkSubmit("hdfs:///a.py", master="yarn"),
        "near": SparkSubmit("hdfs:///a.py"),
    }
    jobs = [Job(name=name, digest="d", launch=launch) for name, launch in launches.items()]
    builder = LaunchBuilder(config, Lone(*jobs).node, lambda *_: str(tmp_path), cast(Any, None))
    problems = Startable(builder.asking).take({job.name: job for job in jobs}, 60.0)

    assert set(problems) == {"bad", "far"}
    assert "is not there" in problems["far"]
    told = {one["check"]: one["text"] for one in builder.remarks([])}
    assert "job near" in told
    with pytest.raises(UnavailableError, match="has no ticket"):
        builder._program(jobs[1], launch_of("far"), {})
    builder._program(jobs[2], launch_of("near"), {})


def launch_of(name: str) -> Launch:
    return Launch(f"{name}#1", name, AttemptNumber(0), Token(7), "n7", 0.0, "{}", 100.0, 60.0, digest="d")


def test_under_another_user_the_ticket_of_that_user_counts(realm: Realm, monkeypatch: pytest.MonkeyPatch) -> None:
    user = pwd.getpwnam("nobody")
    where: list[int] = []

    def cache(_env: object, uid: int) -> str:
        where.append(uid)
        return f"{realm.cache}.absent"

    monkeypatch.setattr(identity, "cache", cache)
    env = {"HADOOP_CONF_DIR": str(realm.hadoop)}
    job = SparkSubmit("/a.py", proxy_user="report")

    assert "nobody has no ticket" in identity.problem(job, "local", env, "nobody", time.time())
    assert where == [user.pw_uid]
    assert identity.problem(job, "local", realm.env(KRB5CCNAME="FILE:/proc/1/root/x"), "no-such-user", 0.0) == ""


def test_a_keytab_that_only_the_user_of_run_as_may_read_is_not_judged(
    realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_path: str) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files, "principals", denied)
    assert identity.problem(keytab_job(realm, f"nobody@{REALM}"), "yarn", realm.env(), "nobody", 0.0) == ""
