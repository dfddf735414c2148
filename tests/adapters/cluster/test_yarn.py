"""The ResourceManager's REST interface: what is found, what is refused, and what proves nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clusters.wire import MISCHIEF
from support.clusters.yarn import FakeYarn
from support.clusters.yarn_rpc import spnego_of
from support.servers.kdc import Kdc

from coordd.adapters.cluster.opening import has_lookup, open_manager
from coordd.adapters.cluster.yarn import Yarn
from coordd.core.jobs.applications import ALIVE, ENDED, FAILED, KILLED, SUCCEEDED, cluster_mark, run_mark, yarn_tags
from coordd.errors import UnavailableError

RUN = "nightly@2026-12-01T02:00:00Z"
MARK = run_mark("prod", RUN)
DAY_S = 86_400.0


@pytest.fixture
def yarn() -> Iterator[FakeYarn]:
    fake = FakeYarn()
    yield fake
    fake.close()


def tags(attempt: int = 0, token: int = 7, run: str = RUN) -> str:
    return ",".join(yarn_tags("prod", run, attempt, token))


def client(fake: FakeYarn, directory: Path, *others: FakeYarn, answer_s: float = 5.0) -> Yarn:
    return Yarn({}, fake.configuration(directory / "conf", *others), answer_s=answer_s)


def test_an_application_is_found_by_its_mark(yarn: FakeYarn, tmp_path: Path) -> None:
    ident = yarn.submit("nightly", tags(2, 42))
    yarn.submit("another", tags(run="hourly#1"))
    yarn.submit("untagged", "")

    (found,) = client(yarn, tmp_path).find(MARK)

    assert (found.id, found.state, found.run_mark, found.attempt, found.token) == (ident, ALIVE, MARK, 2, 42)
    assert found.name == "nightly"
    assert abs(found.started_at - time.time()) < 60


def test_nothing_found_is_an_answer(yarn: FakeYarn, tmp_path: Path) -> None:
    assert client(yarn, tmp_path).find(MARK) == []


@pytest.mark.parametrize(
    ("state", "final", "expected"),
    [
        ("FINISHED", "SUCCEEDED", SUCCEEDED),
        ("FINISHED", "FAILED", FAILED),
        ("FINISHED", "KILLED", KILLED),
        ("FINISHED", "UNDEFINED", ENDED),
        ("FINISHED", "ENDED", ENDED),
        ("FAILED", "FAILED", FAILED),
        ("KILLED", "KILLED", KILLED),
        ("ACCEPTED", "UNDEFINED", ALIVE),
        ("A_NEW_STATE", "SUCCEEDED", ALIVE),
    ],
)
def test_only_a_final_state_is_an_end(yarn: FakeYarn, tmp_path: Path, state: str, final: str, expected: str) -> None:
    ident = yarn.submit("nightly", tags())
    yarn.finish(ident, final, state, "User class threw exception:\n  boom")

    (found,) = client(yarn, tmp_path).find(MARK)

    assert found.state == expected
    assert found.detail == ("" if expected == ALIVE else "User class threw exception: boom")


def test_a_secret_in_the_words_of_an_application_is_hidden(yarn: FakeYarn, tmp_path: Path) -> None:
    """They become the reason of the run in the ledger, which everybody may read."""
    ident = yarn.submit("nightly", tags())
    yarn.finish(ident, "FAILED", "FINISHED", "User class threw exception: jdbc:x://db/a?user=etl&password=hunter2")

    (found,) = client(yarn, tmp_path).find(MARK)

    assert found.detail == "User class threw exception: jdbc:x://db/a?user=etl&password=***"


def test_a_resource_manager_that_ignores_the_filter_is_not_believed(yarn: FakeYarn, tmp_path: Path) -> None:
    yarn.filters = False
    yarn.submit("another", tags(run="hourly#1"))
    yarn.submit("untagged", "")

    assert client(yarn, tmp_path).find(MARK) == []


def test_all_applications_of_a_coordd_cluster_are_found(yarn: FakeYarn, tmp_path: Path) -> None:
    yarn.filters = False
    mine = [yarn.submit("nightly", tags()), yarn.submit("another", tags(run="hourly#1"))]
    yarn.submit("of another cluster", ",".join(yarn_tags("test", RUN, 0, 1)))

    assert [one.id for one in client(yarn, tmp_path).of_cluster(cluster_mark("prod"))] == mine


@pytest.mark.parametrize("mischief", MISCHIEF)
def test_a_resource_manager_that_misbehaves_is_no_answer(yarn: FakeYarn, tmp_path: Path, mischief: str) -> None:
    yarn.submit("nightly", tags())
    yarn.mischief = mischief

    with pytest.raises(UnavailableError) as caught:
        client(yarn, tmp_path, answer_s=1.0).find(MARK)

    assert f"127.0.0.1:{yarn.port}" in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"{}", b'{"apps": 3}', b'{"apps": {"app": {"id": "x"}}}', b'{"apps": {"app": [{"name": 1}]}}', b"null"]
)
def test_json_of_another_form_is_no_answer(
    yarn: FakeYarn, tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yarn, "answer", lambda _asked: (200, content, {}))

    with pytest.raises(UnavailableError, match="expected"):
        client(yarn, tmp_path).find(MARK)


def test_a_pair_is_asked_until_the_active_one_answers(yarn: FakeYarn, tmp_path: Path) -> None:
    active = FakeYarn()
    try:
        ident = active.submit("nightly", tags())
        way = client(yarn, tmp_path, active)
        yarn.standby = True
        assert [one.id for one in way.find(MARK)] == [ident]

        asked = len(yarn.asked)
        way.find(MARK)
        assert len(yarn.asked) == asked, "the active one is asked first from then on"

        yarn.standby, active.standby = False, True  # a failover
        assert way.find(MARK) == []
        yarn.mischief = "away"
        with pytest.raises(UnavailableError, match="on standby"):
            way.find(MARK)
    finally:
        active.close()


def test_an_application_is_ended(yarn: FakeYarn, tmp_path: Path) -> None:
    ident = yarn.submit("nightly", tags())
    way = client(yarn, tmp_path)

    way.end(ident)

    assert [one.state for one in way.find(MARK)] == [KILLED]
    with pytest.raises(UnavailableError, match="expected 202"):
        way.end("application_1_0001")


def test_spnego_is_answered_by_curl_with_the_programs_ticket(
    yarn: FakeYarn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for curl: the real one, with the header that a ticket would give."""
    yarn.ticket = "YIIZ"
    ident = yarn.submit("nightly", tags())
    env = yarn.configuration(tmp_path / "conf")
    stand_in = tmp_path / "bin/curl"
    stand_in.parent.mkdir()
    stand_in.write_text(
        '#!/bin/sh\n[ "$KRB5CCNAME" = FILE:/tmp/ticket ] || exit 9\n'
        'exec /usr/bin/curl -H "Authorization: Negotiate YIIZ" "$@"\n'
    )
    stand_in.chmod(0o755)
    path = f"{stand_in.parent}:{env['PATH']}"
    monkeypatch.setenv("PATH", path)
    way = Yarn({}, {**env, "PATH": path, "KRB5CCNAME": "FILE:/tmp/ticket"}, answer_s=5.0)

    assert [one.id for one in way.find(MARK)] == [ident]
    way.end(ident)
    assert yarn.apps[ident]["state"] == "KILLED"
    assert [asked.path for asked in yarn.asked if asked.method == "PUT"][-1].endswith(f"{ident}/state")


def test_a_real_ticket_opens_a_door_of_spnego(yarn: FakeYarn, tmp_path: Path) -> None:
    """A real KDC, the real curl, and Java's own GSS-API behind the door: it says who asks."""
    ident = yarn.submit("nightly", tags())
    with Kdc(tmp_path / "kdc") as kdc, spnego_of(yarn, kdc) as port:
        yarn.hostname, yarn.door_port = "localhost", port
        env = {**yarn.configuration(tmp_path / "conf"), "KRB5_CONFIG": str(kdc.krb5_conf)}
        ticket = kdc.ticket("cc", kdc.keytab("etl.keytab", "etl"), "etl")
        way = Yarn({}, {**env, "KRB5CCNAME": f"FILE:{ticket}"}, answer_s=30.0)

        assert [one.id for one in way.find(MARK)] == [ident]
        way.end(ident)
        assert yarn.apps[ident]["diagnostics"] == "Application killed by user etl"
        gone = {**env, "KRB5CCNAME": f"FILE:{tmp_path}/nothing"}
        with pytest.raises(UnavailableError, match="a valid Kerberos ticket is needed"):
            Yarn({}, gone, answer_s=30.0).find(MARK)


def test_without_a_ticket_the_refusal_is_named(yarn: FakeYarn, tmp_path: Path) -> None:
    yarn.ticket = "YIIZ"

    with pytest.raises(UnavailableError, match="a valid Kerberos ticket is needed"):
        client(yarn, tmp_path).find(MARK)


# ---- does it remember?


def test_it_remembers_while_it_shows_an_older_application(yarn: FakeYarn, tmp_path: Path) -> None:
    yarn.started_on = int(time.time() * 1000)  # it was restarted, with its state store
    since = time.time() - DAY_S
    way = client(yarn, tmp_path)
    assert "started after the submission" in way.keeps_since(since)

    ident = yarn.submit("older", "")
    yarn.finish(ident)
    yarn.apps[ident]["finishedTime"] = int((since - 400) * 1000)
    assert way.keeps_since(since) == ""


def test_it_remembers_when_it_was_up_and_had_few_applications(yarn: FakeYarn, tmp_path: Path) -> None:
    way = client(yarn, tmp_path)
    assert way.keeps_since(time.time() - DAY_S) == ""

    yarn.submitted = 1000
    assert "keeps 1000 ended applications, and 1000 were submitted" in way.keeps_since(time.time() - DAY_S)


def test_spark_and_the_site_say_how_many_it_keeps(yarn: FakeYarn, tmp_path: Path) -> None:
    yarn.submitted = 1000
    conf = {"spark.hadoop.yarn.resourcemanager.max-completed-applications": "10000"}

    assert Yarn(conf, yarn.configuration(tmp_path)).keeps_since(time.time() - DAY_S) == ""


# ---- the configuration


def test_without_a_configuration_the_environment_is_named() -> None:
    with pytest.raises(UnavailableError, match="HADOOP_CONF_DIR and YARN_CONF_DIR are not set"):
        Yarn({}, {"PATH": os.environ["PATH"]})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("<configuration></configuration>", "names no ResourceManager"),
        ("<configuration><property>", "yarn-site.xml"),
        ("", "yarn-site.xml"),
    ],
)
def test_a_configuration_that_says_nothing_is_named(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "yarn-site.xml").write_text(content)

    with pytest.raises(UnavailableError, match=expected):
        Yarn({}, {"YARN_CONF_DIR": str(tmp_path)})


def test_addresses_are_read_as_hadoop_reads_them(tmp_path: Path) -> None:
    def place(**settings: str) -> str:
        lines = [f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings.items()]
        (tmp_path / "yarn-site.xml").write_text(f"<configuration>{''.join(lines)}</configuration>")
        return Yarn({}, {"HADOOP_CONF_DIR": str(tmp_path)}).place

    rm = "yarn.resourcemanager."
    assert place(**{f"{rm}hostname": "rm.example"}) == "http://rm.example:8088"
    assert place(**{f"{rm}address": "rm.example:8032"}) == "http://rm.example:8088"
    https = {"yarn.http.policy": "HTTPS_ONLY", f"{rm}hostname": "rm.example"}
    assert place(**https) == "https://rm.example:8090"
    assert place(**https, **{f"{rm}webapp.https.address": "${" + f"{rm}hostname" + "}:9"}) == "https://rm.example:9"
    pair = {f"{rm}ha.enabled": "true", f"{rm}ha.rm-ids": "a,b", f"{rm}hostname.a": "one", f"{rm}hostname.b": "two"}
    assert place(**pair) == "http://one:8088 or http://two:8088"
    # a value that names itself ends, too
    assert place(**{f"{rm}webapp.address": "x${" + f"{rm}webapp.address" + "}"}).startswith("http://x")


def test_of_two_directories_the_first_with_a_file_counts_as_for_spark(tmp_path: Path) -> None:
    """Else a node would look for applications in another cluster than the one that spark-submit calls."""

    def directory(name: str, host: str, file: str = "yarn-site.xml") -> str:
        (tmp_path / name).mkdir(exist_ok=True, parents=True)
        setting = f"<property><name>yarn.resourcemanager.hostname</name><value>{host}</value></property>"
        (tmp_path / name / file).write_text(f"<configuration>{setting}</configuration>")
        return str(tmp_path / name)

    env = {"HADOOP_CONF_DIR": directory("hadoop", "one"), "YARN_CONF_DIR": directory("yarn", "two")}
    assert Yarn({}, env).place == "http://one:8088"
    (tmp_path / "hadoop/yarn-site.xml").unlink()
    directory("hadoop", "core", "core-site.xml")
    assert Yarn({}, env).place == "http://two:8088"
    spark = os.path.dirname(directory("spark/conf", "three"))
    assert Yarn({}, {**env, "SPARK_HOME": spark}).place == "http://three:8088"
    own = directory("own", "four")
    assert Yarn({}, {**env, "SPARK_HOME": spark, "SPARK_CONF_DIR": own}).place == "http://four:8088"


def test_a_local_master_has_no_look_up() -> None:
    assert [has_lookup(master) for master in ("yarn", "k8s://https://api", "spark://m:7077", "local[*]")] == [
        True, True, True, False,
    ]  # fmt: skip
    with pytest.raises(UnavailableError, match="cannot be looked up"):
        open_manager("local[*]", {}, {})
