"""What a [[trigger]] may say, and how it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugins.written import written
from support.samples import EVERY_KEY

from coordd.config.hooks.events import CHECK_EVENTS
from coordd.config.jobfile import JobSet, load_jobs
from coordd.config.sections import Config, HistoryConfig, TriggersConfig
from coordd.core.jobs.trigger import Trigger

COMMAND = '[command]\nargv = ["/bin/true", "{file}"]\n'
FILE = '[[trigger]]\nkind = "file"\npath = "/in/*.csv"\n'
HTTP = '[[trigger]]\nkind = "http"\nroute = "/orders"\nsecret_file = "/etc/coordd/orders"\n'
REDIS = '[[trigger]]\nkind = "redis"\nurl = "rediss://h:6379/0"\nstream = "orders"\n'
AMQP = '[[trigger]]\nkind = "amqp"\nurl = "amqps://h/prod"\nqueue = "q"\n'
SQL = '[[trigger]]\nkind = "sql"\nurl = "postgresql://u@h/db?sslmode=verify-full"\nquery = "SELECT id FROM ready"\n'
HEAD = 'params = { file = "" }\n'


def loaded(path: Path, **texts: str) -> JobSet:
    for name, text in texts.items():
        (path / f"{name}.toml").write_text(text)
    return load_jobs(str(path), Config())


def test_a_trigger_gets_the_documented_defaults(tmp_path: Path) -> None:
    found = loaded(tmp_path, j=COMMAND.replace(', "{file}"', "") + FILE)

    assert found.problems == {}
    expected = Trigger(kind="file", name="file", path="/in/*.csv", settle_s=2.0, every_s=10.0, max_open=1)
    assert found.jobs["j"].triggers == (expected,)


def test_the_trigger_of_the_sample_arrives(tmp_path: Path) -> None:
    job = loaded(tmp_path, j=EVERY_KEY).jobs["j"]
    assert job.triggers == (
        Trigger(
            kind="file",
            name="drop",
            path="/data/in/*.csv",
            settle_s=5.0,
            every_s=60.0,
            max_open=20,
            args={"region": "{trigger.name}"},
        ),
    )


@pytest.mark.parametrize(
    ("overlap", "most"),
    [("", 1), ('overlap = "allow"\n', 100), ('overlap = "queue"\nqueue_max = 7\n', 7), ('overlap = "replace"\n', 1)],
)
def test_so_many_runs_are_open_that_none_is_rejected(tmp_path: Path, overlap: str, most: int) -> None:
    found = loaded(tmp_path, j=overlap + HEAD + COMMAND + FILE)
    assert found.jobs["j"].triggers[0].max_open == most


SITE = '[[trigger]]\nkind = "site-kind"\n'


@pytest.fixture(autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that brings a kind of triggers."""
    site = tmp_path_factory.mktemp("packages") / "site"
    monkeypatch.syspath_prepend(str(written(site, "coordd.triggers", "", "site-kind")))


def test_the_kind_of_a_package_has_keys_of_its_own_and_any_field(tmp_path: Path) -> None:
    text = SITE + 'url = "sftp://u@h/in"\npath = "in/*"\nquery = "a; b"\nargv = ["x"]\nevery = "5s"\n'
    found = loaded(tmp_path, j=HEAD + COMMAND + text + 'args = { file = "{trigger.body.subject}" }\n')
    (one,) = found.jobs["j"].triggers
    assert (one.url, one.path, one.query, one.argv, one.every_s) == ("sftp://u@h/in", "in/*", "a; b", ("x",), 5.0)
    assert one.about == "site-kind in/* sftp://u@h/in a; b x"
    assert (one.plugged, one.polled) == (True, True)
    found = loaded(tmp_path, j='run_as = "nobody"\n' + HEAD + COMMAND + SITE)
    assert "a job with run_as may not bring one" in found.problems["j"][0].message


BAD = [
    ("path", '[[trigger]]\nkind = "file"\n', "expected path in a trigger of the kind file"),
    ("kind", '[[trigger]]\nkind = "fiel"\npath = "/in/a"\n', 'did you mean "file"?'),
    ("kind", "[[trigger]]\n", "found nothing"),
    ("kind", "[[trigger]]\nkind = 3\n", "expected one of file, http"),
    ("args", SITE + 'args = { file = "{trigger.path}" }\n', "is not a value of this kind of trigger"),
    ("url", SITE + 'url = "sftp://u:s3cret@h/in"\n', "expected a URL without a password"),
    ("queue", SITE + 'queue = "q"\n', 'unknown key "queue"'),
    ("path", FILE.replace("/in/*.csv", "in/*.csv"), "expected an absolute path"),
    ("path", FILE.replace("/in/*.csv", "/in/**/a"), "would search whole trees"),
    ("path", FILE.replace("/in/*.csv", "/in/../a"), 'without ".."'),
    ("path", FILE.replace("/in/*.csv", "/*/a"), "a directory before the first wildcard"),
    ("path", FILE.replace("/in/*.csv", "/a"), "a directory and a name"),
    ("path", FILE.replace("/in/*.csv", "s3a://bucket/in/*.csv"), "expected an absolute path, or webhdfs://"),
    ("path", FILE.replace("/in/*.csv", "webhdfs://nn:9870/in/?.csv"), "expected an absolute path, or webhdfs://"),
    ("path", FILE.replace("/in/*.csv", "webhdfs://nn:9870/in/../a"), 'without ".."'),
    ("every", FILE + 'every = "0s"\n', "from 1 to"),
    ("evry", FILE + 'evry = "1s"\n', 'did you mean "every"?'),
    ("argv", FILE + 'argv = ["/bin/ls"]\n', "unknown key"),
    ("args", FILE + 'args = { fil = "x" }\n', '"fil" is not declared under params'),
    ("args", FILE + 'args = { file = "{path}" }\n', 'did you mean "trigger.path"?'),
    ("args", FILE + 'args = { file = "{trigger.run}" }\n', "is not a value of this kind of trigger"),
    ("args", FILE + 'args = { file = "{" }\n', "a single"),
    ("max_open", FILE + "max_open = 2\n", 'needs overlap = "allow" or "queue"'),
    ("name", FILE + FILE, 'there is another trigger "file"'),
    ("name", FILE + 'name = "a/b"\n', "expected a letter"),
    ("argv", '[[trigger]]\nkind = "command"\nargv = ["ls"]\n', "absolute path"),
    ("secret_file", '[[trigger]]\nkind = "http"\nroute = "/a"\n', "expected secret_file"),
    ("route", HTTP.replace("/orders", "orders"), "a path such as /orders"),
    ("route", HTTP.replace("/orders", "/a?b"), "a path such as /orders"),
    ("auth", HTTP + 'auth = "basic"\n', "expected one of bearer, hmac"),
    ("args", HTTP + 'args = { file = "{trigger.body}" }\n', "is not a value of this kind of trigger"),
    ("stream", '[[trigger]]\nkind = "redis"\nurl = "rediss://h"\n', "expected stream"),
    ("url", REDIS.replace("rediss://h:6379/0", "http://h"), "expected a URL that starts with one of redis, rediss"),
    ("url", REDIS.replace("//h", "//u:s3cret@h"), "expected a URL without a password"),
    ("stream", REDIS.replace("orders", "or ders"), "a name without spaces"),
    ("queue", AMQP.replace('queue = "q"\n', ""), "expected queue"),
    ("url", AMQP.replace("amqps://h", "redis://h"), "starts with one of amqp, amqps"),
    ("stream", AMQP + 'stream = "s"\n', "unknown key"),
    ("url", REDIS.replace("rediss:", "redis:"), "not encrypted"),
    ("query", '[[trigger]]\nkind = "sql"\nurl = "sqlite:////a"\n', "expected query"),
    ("query", SQL.replace("ready", "ready; DROP TABLE orders"), "one query"),
    ("url", SQL.replace("/db?", "?"), "the name of a database"),
    ("url", SQL.replace("?sslmode=verify-full", ""), "…?sslmode=verify-full, or a tunnel"),
    ("url", SQL.replace("u@", "u:s3cret@"), "expected a URL without a password"),
    ("key", REDIS + 'key = "message"\n', '"id", "body", or "body.NAME"'),
    ("args", REDIS + 'args = { file = "{trigger.path}" }\n', "is not a value of this kind of trigger"),
    ("on", '[[trigger]]\nkind = "event"\non = "run.sucess"\njobs = ["a"]\n', 'did you mean "run.success"?'),
    ("jobs", '[[trigger]]\nkind = "event"\non = "run.success"\n', "is about runs of jobs"),
    ("jobs", '[[trigger]]\nkind = "event"\non = "node.lost"\njobs = ["a"]\n', "is about no job"),
    ("jobs", '[[trigger]]\nkind = "event"\non = "run.success"\njobs = ["j"]\n', "go on for ever"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "text", "said"), BAD)
def test_what_is_wrong_is_named_with_file_key_and_number(tmp_path: Path, key: str, text: str, said: str) -> None:
    found = loaded(tmp_path, j=HEAD + COMMAND + text)

    assert found.jobs == {}
    (problem,) = found.problems["j"]
    assert (problem.file, problem.key) == (str(tmp_path / "j.toml"), f"trigger.{key}")
    assert said in problem.message
    assert problem.message.startswith("trigger ")


def test_a_command_does_not_run_beside_run_as(tmp_path: Path) -> None:
    text = 'run_as = "etl"\n' + HEAD + COMMAND + '[[trigger]]\nkind = "command"\nargv = ["/bin/ls"]\n'
    assert "runs as the daemon's user" in str(loaded(tmp_path, j=text).problems["j"])


def test_a_file_of_sqlite_does_not_go_with_run_as(tmp_path: Path) -> None:
    sql = SQL.replace("postgresql://u@h/db?sslmode=verify-full", "sqlite:////srv/orders.db")
    assert loaded(tmp_path, j=HEAD + COMMAND + sql).problems == {}
    assert "read as the daemon's user" in str(
        loaded(tmp_path, j='run_as = "etl"\n' + HEAD + COMMAND + sql).problems["j"]
    )


def after(*jobs: str) -> str:
    named = ", ".join(f'"{job}"' for job in jobs)
    return HEAD + COMMAND + f'[[trigger]]\nkind = "event"\non = ["run.success", "run.failure"]\njobs = [{named}]\n'


def test_jobs_that_would_start_each_other_for_ever_are_refused_and_the_others_stay(tmp_path: Path) -> None:
    found = loaded(tmp_path, a=HEAD + COMMAND, b=after("a", "d"), c=after("b"), d=after("c"), e=after("d"))

    assert sorted(found.jobs) == ["a", "e"]
    assert "b → c → d → b" in str(found.problems["b"]) or "b → d → c → b" in str(found.problems["b"])
    assert sorted(found.problems) == ["b", "c", "d"]


def test_a_route_belongs_to_one_job_and_needs_a_listener(tmp_path: Path) -> None:
    found = loaded(
        tmp_path, a=HEAD + COMMAND + HTTP, b=HEAD + COMMAND + HTTP, c=HEAD + COMMAND + HTTP.replace("/orders", "/other")
    )

    assert sorted(found.jobs) == ["c"]
    assert 'the route "/orders" is used more than once: by a, b' in str(found.problems["a"])
    (problem,) = found.problems["c"]
    assert (problem.severity, problem.key) == ("warning", "trigger.route")
    listening = Config(triggers=TriggersConfig(listen="127.0.0.1:7466"))
    for name in "ab":
        (tmp_path / f"{name}.toml").unlink()
    text = HEAD + COMMAND + HTTP + 'args = { file = "{trigger.body.file}" }\nauth = "hmac"\nkey_header = "X-Id"\n'
    (tmp_path / "c.toml").write_text(text)
    loud = load_jobs(str(tmp_path), listening)
    assert loud.problems == {}
    (trigger,) = loud.jobs["c"].triggers
    assert (trigger.route, trigger.auth, trigger.key_header) == ("/orders", "hmac", "X-Id")


@pytest.mark.parametrize(
    ("listen", "tls", "auth", "warns"),
    [
        ("0.0.0.0:7466", False, "bearer", True), ("edge-1:7466", False, "bearer", True),
        ("[::]:7466", False, "bearer", True),
        ("0.0.0.0:7466", True, "bearer", False), ("0.0.0.0:7466", False, "hmac", False),
        ("127.0.0.1:7466", False, "bearer", False), ("[::1]:7466", False, "bearer", False),
    ],
)  # fmt: skip
def test_a_token_that_crosses_the_network_in_clear_is_a_warning(
    tmp_path: Path, listen: str, tls: bool, auth: str, warns: bool
) -> None:
    args = 'args = { file = "{trigger.body.file}" }\n'
    (tmp_path / "c.toml").write_text(HEAD + COMMAND + HTTP + args + f'auth = "{auth}"\n')
    found = load_jobs(str(tmp_path), Config(triggers=TriggersConfig(listen=listen, tls=tls)))

    assert list(found.jobs) == ["c"]
    told = [(one.severity, one.key) for one in found.problems.get("c", ())]
    assert told == ([("warning", "trigger.auth")] if warns else [])
    assert not warns or f"listen = {listen} of coordd.toml is without TLS" in str(found.problems["c"][0])


@pytest.mark.parametrize(("keep", "severity"), [("1d", "error"), ("2d", "warning"), ("3d", "")])
def test_a_file_trigger_needs_a_history_that_is_longer_than_the_age_at_which_files_are_refused(
    tmp_path: Path, keep: str, severity: str
) -> None:
    (tmp_path / "j.toml").write_text(HEAD + COMMAND + FILE + 'args = { file = "{trigger.path}" }\n')
    found = load_jobs(str(tmp_path), Config(history=HistoryConfig(keep=keep)))

    assert list(found.jobs) == (["j"] if severity != "error" else [])
    told = list(found.problems.get("j", ()))
    assert [one.severity for one in told] == ([severity] if severity else [])
    assert (
        not severity
        or f"expected at least 3d in [history] keep of coordd.toml beside a file trigger, found {keep}" in str(told[0])
    )
    (tmp_path / "j.toml").write_text(HEAD + COMMAND + AMQP + 'args = { file = "{trigger.key}" }\n')
    assert load_jobs(str(tmp_path), Config(history=HistoryConfig(keep=keep))).problems == {}


def test_a_job_that_this_node_does_not_have_is_a_warning(tmp_path: Path) -> None:
    found = loaded(tmp_path, sales=HEAD + COMMAND, b=after("sale"))

    assert sorted(found.jobs) == ["b", "sales"]
    (problem,) = found.problems["b"]
    assert (problem.severity, problem.key) == ("warning", "trigger.jobs")
    assert 'there is no job "sale" here; did you mean "sales"?' in problem.message


def test_a_stream_is_looked_at_each_second_and_its_fields_are_values(tmp_path: Path) -> None:
    text = 'overlap = "allow"\n' + HEAD + COMMAND + REDIS + 'args = { file = "{trigger.body.what}" }\nkey = "body.id"\n'
    found = loaded(tmp_path, j=text + 'password_file = "/etc/coordd/redis.password"\n')

    assert found.problems == {}
    (trigger,) = found.jobs["j"].triggers
    assert trigger == Trigger(
        kind="redis", name="redis", url="rediss://h:6379/0", stream="orders", key="body.id", every_s=1.0, max_open=100,
        password_file="/etc/coordd/redis.password",  # noqa: S106  # no secret
        args={"file": "{trigger.body.what}"},
    )  # fmt: skip
    assert trigger.about == "orders at rediss://h:6379/0"


def test_a_path_may_be_in_hdfs(tmp_path: Path) -> None:
    url = "webhdfs://nn1:9870,nn2:9870/data/out/*/_SUCCESS?user.name=etl"
    found = loaded(tmp_path, j=HEAD + COMMAND + FILE.replace("/in/*.csv", url))
    assert (found.problems, found.jobs["j"].triggers[0].path) == ({}, url)


@pytest.mark.parametrize(
    ("said", "events", "jobs"),
    [
        ('["check.unhealthy", "breaker.opened"]', ("check.unhealthy", "breaker.opened"), ()),
        ('"check.unhealthy"\njobs = ["a"]', ("check.unhealthy",), ("a",)),
        ('["run.success", "node.lost"]\njobs = ["a"]', ("run.success", "node.lost"), ("a",)),
        ('["check.*", "check.unknown"]', CHECK_EVENTS, ()),
    ],
)
def test_events_that_need_not_be_about_a_job_need_no_jobs(
    tmp_path: Path, said: str, events: tuple[str, ...], jobs: tuple[str, ...]
) -> None:
    text = HEAD + COMMAND + f'[[trigger]]\nkind = "event"\non = {said}\n'
    (one,) = loaded(tmp_path, j=text).jobs["j"].triggers
    assert (one.on, one.jobs) == (events, jobs)


TWO = FILE + FILE.replace('"file"', '"file"\nname = "more"').replace("/in", "/more")
DAILY = 'schedule = "30 2 * * *"\n'


@pytest.mark.parametrize(
    ("overlap", "rest", "said"),
    [
        ("forbid", ("", TWO), "found 2 triggers"),
        ("queue", ("", TWO), "while queue_max runs wait"),
        ("forbid", (DAILY, FILE), "found a trigger beside the schedule"),
        ("queue", (DAILY, FILE), "found a trigger beside the schedule"),
        ("allow", (DAILY, TWO), ""),
        ("replace", ("", TWO), ""),
        ("forbid", ("", FILE), ""),
        ("forbid", (DAILY, ""), ""),
    ],
)
def test_arrivals_that_may_be_rejected_for_others_of_the_job_are_a_warning(
    tmp_path: Path, overlap: str, rest: tuple[str, str], said: str
) -> None:
    found = loaded(tmp_path, j=f'overlap = "{overlap}"\n' + rest[0] + HEAD + COMMAND + rest[1])
    problems = [problem.message for problem in found.problems.get("j", []) if problem.key == "trigger"]
    assert [said in message for message in problems] == ([True] if said else [])
    assert "j" in found.jobs
