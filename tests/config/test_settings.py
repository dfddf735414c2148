"""Configuration: defaults, file, environment, and a sentence for everything that is wrong."""

import json
import os
import socket
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from config.written import refused, write
from coordd.cli.coordd import program
from coordd.config import keyring, safety, settings as module
from coordd.config.sections import Budget, ClusterConfig, Config, SparkConfig
from coordd.config.settings import default_node_name, load
from coordd.core.wire.envelope import Key, Keyring

EXAMPLE = Path(__file__).parents[2] / "deploy" / "coordd.example.toml"


@pytest.fixture(autouse=True)
def no_system_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests must not see a configuration of the machine they run on."""
    monkeypatch.setattr(module, "CONFIG_PATH", str(tmp_path / "etc" / "coordd.toml"))


def test_the_defaults_are_those_of_the_documented_example() -> None:
    defaults = load(None, {})
    assert msgspec.structs.replace(load(str(EXAMPLE), {}), path="") == defaults
    assert defaults.cluster.bus_path == "/run/coordd/bus"
    assert defaults.cluster.ledger_path == "/var/lib/coordd/ledger.db"
    assert defaults.cluster.lease == 60.0
    assert (defaults.node.budget.client, defaults.node.budget.cluster) == (2, 20)
    assert defaults.history.keep_s == 90 * 86400
    assert defaults.node.name == default_node_name()


def test_every_setting_stands_in_the_example() -> None:
    text = EXAMPLE.read_text()
    for section, kind in module.SECTIONS.items():
        assert f"[{section}]" in text
        for key in kind.__struct_fields__:
            assert f"\n{key} =" in text or f"\n# {key} =" in text, f"{section}.{key}"


def test_which_file_is_read(tmp_path: Path) -> None:
    given = write(tmp_path / "given.toml", '[node]\nname = "given"')
    named = write(tmp_path / "named.toml", '[node]\nname = "named"')
    environ = {"COORDD_CONFIG": named}
    assert load(given, environ).node.name == "given"
    assert load(None, environ).node.name == "named"
    assert load(None, {"COORDD_NODE_NAME": "x"}).path == ""
    system = write(Path(module.CONFIG_PATH), '[node]\nname = "system"')
    assert load(None, {}).node.name == "system"
    assert load(None, {}).path == system
    assert load(None, environ).node.name == "named"


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.toml")
    assert missing in refused(missing)
    assert missing in refused(None, {"COORDD_CONFIG": missing})


@pytest.mark.parametrize(
    ("variable", "value", "section", "key", "expected"),
    [
        ("COORDD_NODE_NAME", "edge-7", "node", "name", "edge-7"),
        ("COORDD_NODE_TAGS", "gpu, big", "node", "tags", ("gpu", "big")),
        ("COORDD_NODE_TAGS", '["gpu"]', "node", "tags", ("gpu",)),
        ("COORDD_NODE_TAGS", "", "node", "tags", ()),
        ("COORDD_NODE_BUDGET", "{ client = 5 }", "node", "budget", Budget(client=5, cluster=20)),
        ("COORDD_NODE_BUDGET", '{ client = "auto", max = 4 }', "node", "budget", Budget(client="auto", max=4)),
        ("COORDD_CLUSTER_PRIORITY", "rare_first", "cluster", "priority", "rare_first"),
        ("COORDD_CLUSTER_LEASE", "90", "cluster", "lease", 90.0),
        ("COORDD_CLUSTER_MINGLE", "false", "cluster", "mingle", False),
        ("COORDD_CLUSTER_MINGLE", "0", "cluster", "mingle", False),
        ("COORDD_CLUSTER_GOSSIP", "false", "cluster", "gossip", False),
        ("COORDD_CLUSTER_BUS", '["unix:///tmp/bus"]', "cluster", "bus", "unix:///tmp/bus"),
        ("COORDD_CLUSTER_LEDGER", "sqlite:////tmp/l.db", "cluster", "ledger", "sqlite:////tmp/l.db"),
        ("COORDD_SPARK_ENV", '{ A = "1", N = 2, B = true }', "spark", "env", {"A": "1", "N": "2", "B": "true"}),
        ("COORDD_CONTROL_SOCKET", "/tmp/c.sock", "control", "socket", "/tmp/c.sock"),
        ("COORDD_HISTORY_KEEP", "30d", "history", "keep", "30d"),
    ],
)
def test_the_environment_wins(
    tmp_path: Path, variable: str, value: str, section: str, key: str, expected: object
) -> None:
    path = write(tmp_path / "c.toml", '[node]\nname = "from-file"\n[cluster]\nlease = 70')
    loaded = load(path, {variable: value})
    assert getattr(getattr(loaded, section), key) == expected
    assert variable == f"COORDD_{section}_{key}".upper()


def test_every_setting_has_its_variable() -> None:
    shown = load(None, {}).redacted()
    for section, kind in module.SECTIONS.items():
        for field in msgspec.structs.fields(kind):
            variable = f"COORDD_{section}_{field.name}".upper()
            assert "unknown" not in refused(None, {variable: "\0"}), variable
            assert field.name in shown[section]


def test_what_a_run_finds_in_its_environment_is_no_setting() -> None:
    names = ["CONFIG", "SOCKET", "RUN", "JOB", "ATTEMPT", "TOKEN", "NONCE", "NODE", "FIRE_TIME"]
    environ = {f"COORDD_{name}": "" if name == "CONFIG" else "x@y:1" for name in names}
    environ["COORDD_SOMETHING_ELSE"] = "1"
    assert load(None, environ) == load(None, {})


BAD_FILES = [
    # text, key, what else is said
    ("[nod]\n", "nod", 'did you mean "node"?'),
    ("node = 5\n", "node", "expected a table, found the number 5"),
    ('[node]\nnmae = "x"\n', "node.nmae", 'did you mean "name"?'),
    ("[node]\nname = 5\n", "node.name", "expected a text, found the number 5"),
    ('[node]\nname = "a b"\n', "node.name", "1 to 64 of the characters"),
    ('[node]\nname = ""\n', "node.name", "1 to 64 of the characters"),
    (f'[node]\nname = "{"x" * 65}"\n', "node.name", "1 to 64 of the characters"),
    ('[node]\nname = "a\\nb"\n', "node.name", "control character"),
    ('[node]\ntags = "gpu"\n', "node.tags", "expected a list of texts"),
    ("[node]\ntags = [1]\n", "node.tags", "expected a list of texts"),
    ('[node]\nstate_dir = "var"\n', "node.state_dir", "expected an absolute path"),
    ("[node]\nbudget = 5\n", "node.budget", "expected a table { client = 2"),
    ("[node]\nbudget = { clients = 5 }\n", "node.budget", 'did you mean "client"?'),
    ("[node]\nbudget = { client = -1 }\n", "node.budget", "expected 0 to 10000"),
    ("[node]\nbudget = { client = 1.5 }\n", "node.budget", "expected a table"),
    ('[node]\nbudget = { client = "autos" }\n', "node.budget", 'did you mean "auto"?'),
    ('[node]\nbudget = { client = "auto", min = 9 }\n', "node.budget", "min (9) is above max (8)"),
    ('[node]\nbudget = { cluster = "auto" }\n', "node.budget", "expected 0 to 10000 runs for cluster, found the text"),
    ('[cluster]\npriority = "quick"\n', "cluster.priority", 'did you mean "quick_first"?'),
    ("[node]\nbudget = { client = 2, max = 5 }\n", "node.budget", "min and max bound a strategy"),
    ('[cluster]\nname = "prod/eu"\n', "cluster.name", "1 to 64 of the characters"),
    ('[cluster]\nname = "prod.inbox"\n', "cluster.name", "does not end in .inbox"),
    ('[cluster]\nname = ".inbox"\n', "cluster.name", "does not end in .inbox"),
    ('[cluster]\nlease = "60"\n', "cluster.lease", 'expected a number, found the text "60"'),
    ("[cluster]\nlease = true\n", "cluster.lease", "expected a number, found true"),
    ("[cluster]\nlease = nan\n", "cluster.lease", "expected a number, found nan"),
    ("[cluster]\nlease = inf\n", "cluster.lease", "expected a number, found inf"),
    ("[cluster]\nlease = 2026-01-01\n", "cluster.lease", "found a date or time"),
    ("[cluster]\nmingle = 1\n", "cluster.mingle", "expected true or false, found the number 1"),
    ('[cluster]\nbus = "kafka://h"\n', "cluster.bus", "unix, amqp, amqps, redis, rediss"),
    ('[cluster]\nbus = "unix"\n', "cluster.bus", "expected a URL"),
    ('[cluster]\nbus = "unix://run"\n', "cluster.bus", "absolute path as in unix:///run/coordd/bus"),
    ('[cluster]\nbus = ["unix:///a", "unix:///b"]\n', "cluster.bus", "a unix bus has one address"),
    ('[cluster]\nbus = ["amqps://a", "rediss://b"]\n', "cluster.bus", "with the same scheme; found amqps"),
    ("[cluster]\nbus = []\n", "cluster.bus", "expected an address or a list of them"),
    ('[cluster]\nbus = ""\n', "cluster.bus", "expected an address or a list of them"),
    ("[cluster]\nbus = [1]\n", "cluster.bus", "expected a list of texts"),
    ('[cluster]\nbus = "amqps://"\n', "cluster.bus", "expected a host as in amqps://user@broker:5671/vhost"),
    ('[cluster]\nbus = "amqps://:5671/v"\n', "cluster.bus", "expected a host"),
    ('[cluster]\nbus = "amqps://mq..example.com"\n', "cluster.bus", '"mq..example.com" is not a name or an address'),
    (f'[cluster]\nbus = "amqps://{"m" * 64}"\n', "cluster.bus", "expected a host that can be looked up"),
    ('[cluster]\nbus = ["amqps://mq", "amqps://mq-ü_1"]\n', "cluster.bus", "expected a host that can be looked up"),
    ('[cluster]\nbus = "amqps://h:0"\n', "cluster.bus", "a port from 1 to 65535"),
    ('[cluster]\nbus = "amqps://h:65536"\n', "cluster.bus", "a port from 1 to 65535"),
    ('[cluster]\nbus = "amqps://h:amqp"\n', "cluster.bus", "a port from 1 to 65535"),
    ('[cluster]\nbus = "amqps://[::1"\n', "cluster.bus", "a port from 1 to 65535"),
    ('[cluster]\nbus = "amqps://h,i"\n', "cluster.bus", "a port from 1 to 65535"),
    ('[cluster]\nbus = "amqps://h /v"\n', "cluster.bus", "without spaces"),
    ('[cluster]\nbus = "amqps://u:a#b@h/v"\n', "cluster.bus", "expected a host"),
    ('[cluster]\nbus = "amqps://h/v#b"\n', "cluster.bus", "written %23"),
    ('[cluster]\nbus = "amqps://h/a/b"\n', "cluster.bus", "a slash in its name is written %2F"),
    ('[cluster]\nbus = "rediss://h/one"\n', "cluster.bus", "expected the number of a database"),
    ('[cluster]\nbus = "redis+sentinel://h/m"\n', "cluster.bus", "unix, amqp, amqps, redis, rediss"),
    ('[cluster]\nledger = "amqps://h"\n', "cluster.ledger", "sqlite, redis, rediss, redis+sentinel"),
    ('[cluster]\nledger = "redis+sentinel://h:1,i:2"\n', "cluster.ledger", "expected the name of the master"),
    ('[cluster]\nledger = "redis+sentinel://h:1,:2/m"\n', "cluster.ledger", "expected a host"),
    ('[cluster]\nledger = "rediss+sentinel://h,{{host}}/m"\n', "cluster.ledger", '"{{host}}" is not a name'),
    ('[cluster]\nledger = "redis+sentinel://h/m/x"\n', "cluster.ledger", "expected the number of a database"),
    ('[cluster]\nledger = "rediss://h,i/0"\n', "cluster.ledger", "a port from 1 to 65535"),
    ('[cluster]\nledger = "postgres://h"\n', "cluster.ledger", "sqlite, redis, rediss, redis+sentinel"),
    ('[cluster]\nledger = "sqlite:///var/l.db"\n', "cluster.ledger", "four slashes"),
    ('[cluster]\ntls_ca = "ca.pem"\n', "cluster.tls_ca", "expected an absolute path"),
    ('[spark]\nenv = ["A=1"]\n', "spark.env", "expected a table of texts, found a list"),
    ('[history]\nkeep = "90"\n', "history.keep", 'such as "30s"'),
    ('[history]\nkeep = "0d"\n', "history.keep", "above zero"),
    ("[pools]\nheavy = -1\n", "pools.heavy", "expected a whole number from 0"),
    ('[pools]\nheavy = "4"\n', "pools.heavy", "expected a whole number"),
    ('[pools]\n"a b" = 4\n', "pools.a b", "1 to 64 of the characters"),
    ("[[hook]]\n", "hook", "argv: expected one of argv, url and call"),
    ('[metrics]\nlisten = "9530"\n', "metrics.listen", "expected HOST:PORT such as 127.0.0.1:9530"),
    ('[metrics]\nlisten = "127.0.0.1:0"\n', "metrics.listen", "expected HOST:PORT such as 127.0.0.1:9530"),
    ('[metrics]\nlisten = "h:70000"\n', "metrics.listen", "expected HOST:PORT such as 127.0.0.1:9530"),
    ('[spark]\nconf_allow = ["executor.*"]\n', "spark.conf_allow", 'expected keys such as "spark.executor.*"'),
    ('[guard]\nlisten = "7455"\n', "guard.listen", "expected HOST:PORT"),
    ('[guard]\naddresses = ["edge-1"]\n', "guard.addresses", "expected HOST:PORT"),
    ('[guard]\naddresses = [""]\n', "guard.addresses", "expected up to 16 times HOST:PORT"),
    ('[triggers]\nlisten = "7466"\n', "triggers.listen", "expected HOST:PORT"),
    ("[triggers]\ntls = true\n", "triggers.tls", "set cluster.tls_cert"),
    ("[guard]\ntls = true\n", "guard.tls", "set cluster.tls_cert"),
    ('[metrics]\ntextfile = "coordd.prom"\n', "metrics.textfile", "expected an absolute path"),
    ('[tracing]\notlp = "4318"\n', "tracing.otlp", "expected an address such as http://127.0.0.1:4318"),
    ('[tracing]\notlp = "https://me:pw@h"\n', "tracing.otlp", "expected an address without a password"),
    ('[lineage]\nurl = "ftp://h/x"\n', "lineage.url", "expected an address such as https://chat.example/hook"),
    (f'[lineage]\nnamespace = "{"n" * 201}"\n', "lineage.namespace", "expected at most 200 bytes, found more"),
    ('[lineage]\ntoken_file = "/no/such/file"\n', "lineage.token_file", "it cannot be read"),
    ("[limits]\n", "limits", "not available in this version"),
    # Relations.
    ("[cluster]\nlease = 17\n", "cluster.lease", "cluster.renew_interval (5 s) + 2 x cluster.ledger_timeout (2 s)"),
    ("[cluster]\nkill_grace = 50\n", "cluster.lease", "cluster.kill_grace (50 s)"),
    ("[cluster]\nlease = 0\n", "cluster.lease", "expected 0.01 to 86400 seconds, found 0"),
    ("[cluster]\nrenew_interval = -5\n", "cluster.renew_interval", "found -5"),
    ("[cluster]\nheartbeat_interval = 0\n", "cluster.heartbeat_interval", "found 0"),
    ("[cluster]\nheartbeat_interval = 61\n", "cluster.heartbeat_interval", "longer than cluster.lease (60 s)"),
    ("[cluster]\nelection_timeout = 61\n", "cluster.election_timeout", "longer than cluster.lease (60 s)"),
    ("[cluster]\nmingle_timeout = -1\n", "cluster.mingle_timeout", "found -1"),
    (f'[control]\nsocket = "/{"s" * 107}"\n', "control.socket", "at most 107 bytes; control.socket has 108"),
    (f'[node]\nruntime_dir = "/{"r" * 95}"\n', "node.runtime_dir", "the paths in node.runtime_dir would have 108"),
    (f'[cluster]\nbus = "unix:///{"b" * 100}"\n', "cluster.bus", "at most 107 bytes"),
]


@pytest.mark.parametrize(("text", "key", "said"), BAD_FILES)
def test_what_is_wrong_in_a_file_is_named_with_file_key_and_line(
    tmp_path: Path, text: str, key: str, said: str
) -> None:
    path = write(tmp_path / "bad.toml", text)
    message = refused(path)
    assert path in message
    assert key in message
    assert said in message
    assert "\n" not in message  # one problem, one sentence
    if "kill_grace" not in text:  # there the lease is wrong, and the file does not have one
        assert f"{path}:{text.count(chr(10))}: {key}: " in message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[node\n", "it is not TOML"),
        (b'[node]\nname = "a"\nname = "b"\n', "it is not TOML"),
        (b"\n\n[node]\nname = \n", ":4: it is not TOML"),
        (b'[node]\nname = "\xff"\n', ":2: expected UTF-8, found the byte 0xff"),
        (b"x = " + b"[" * 100_000, "nested too deeply"),
        (b"x = " + b"1" * 5000, "it is not TOML"),
        (b"a." * 50_000 + b"b = 1", "too many parts"),
        (b"a" * 1_000_000 + b" = 1", "unknown section"),
        (b"\n".join([b"k%d = 1" % n for n in range(50_000)]), "unknown section"),
        (b"[node]\n" + b"\n".join([b"k%d = 1" % n for n in range(50_000)]), "unknown key"),
        (b"#" * (1024 * 1024 + 1), "at most 1048576 bytes"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    message = refused(str(path))
    assert message.startswith(str(path))
    assert said in message
    assert len(message) < 20_000


def test_a_fifo_or_a_directory_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.toml"
    os.mkfifo(fifo)
    assert "expected a regular file" in refused(str(fifo))
    assert "cannot be read" in refused(str(tmp_path))
    assert "cannot be read" in refused("/x\0y")


BAD_VARIABLES = [
    ("COORDD_NODE_NAM", "x", 'did you mean "COORDD_NODE_NAME"?'),
    ("COORDD_CLUSTER_LEASES", "x", 'did you mean "COORDD_CLUSTER_LEASE"?'),
    ("COORDD_CLUSTER_LEASE", "long", 'expected a number, found the text "long"'),
    ("COORDD_CLUSTER_LEASE", "", "expected a number"),
    ("COORDD_CLUSTER_LEASE", "1e999", "expected a number"),
    ("COORDD_CLUSTER_LEASE", "10", "are 19.2 s, more than cluster.lease (10 s)"),
    ("COORDD_CLUSTER_MINGLE", "maybe", "expected true or false"),
    ("COORDD_NODE_BUDGET", "many", "expected a table"),
    ("COORDD_NODE_BUDGET", "{ client = ", "expected a table"),
    ("COORDD_NODE_TAGS", "a b", "1 to 64 of the characters"),
    ("COORDD_NODE_NAME", "caf\udce9", "control character"),
    ("COORDD_CLUSTER_BUS", "amqps://user:hunter2@broker:port", "a port from 1 to 65535"),
    ("COORDD_CLUSTER_BUS", "amqps://user:hunter2@a/b/c", "one vhost"),
    ("COORDD_CLUSTER_LEDGER", "redis://user:hunter2@broker", "is not encrypted"),
    ("COORDD_CLUSTER_BUS", "amqps+x://user:hunter2@broker", "expected a URL"),
    ("COORDD_JOBS_BACKEND", "pyton", 'which no installed package brings; did you mean "python"?'),
    ("COORDD_JOBS_BACKEND", "", "expected a configuration backend"),
    ("COORDD_JOBS_URL", "amqp://user:hunter2@broker", "expected a URL that starts with one of redis, rediss"),
    ("COORDD_JOBS_URL", "redis://user:hunter2@broker/0", "is not encrypted"),
    ("COORDD_JOBS_CALL", "site_jobs", "expected a module and its function"),
    ("COORDD_JOBS_TIMEOUT", "61", "expected 0.01 to 60 seconds, found 61"),
    ("COORDD_JOBS_REFRESH", "0.5", "expected 1 to 86400 seconds, or 0 for never, found 0.5"),
    ("COORDD_JOBS_PASSWORD_FILE", "/none/password", "it cannot be read"),
]


@pytest.mark.parametrize(("variable", "value", "said"), BAD_VARIABLES)
def test_what_is_wrong_in_the_environment_is_named(variable: str, value: str, said: str) -> None:
    message = refused(None, {variable: value})
    assert message.startswith("environment: ")
    assert variable in message
    assert said in message
    assert "hunter2" not in message


def test_a_backend_needs_its_place() -> None:
    assert "cluster.ledger is sqlite://: name a server with jobs.url" in refused(None, {"COORDD_JOBS_BACKEND": "redis"})
    assert 'jobs.call = "MODULE:FUNCTION"' in refused(None, {"COORDD_JOBS_BACKEND": "python"})
    needs = {"COORDD_JOBS_BACKEND": "redis", "COORDD_JOBS_URL": "rediss+sentinel://s1,s2:26380"}
    assert "expected the name of the master behind the sentinels" in refused(None, needs)
    assert load(None, {**needs, "COORDD_JOBS_URL": "rediss+sentinel://s1,s2:26380/m/1"}).jobs.published
    given = {"COORDD_JOBS_BACKEND": "redis", "COORDD_JOBS_URL": "redis://localhost/1", "COORDD_JOBS_REFRESH": "0"}
    jobs = load(None, given).jobs
    assert (jobs.published, jobs.called, jobs.url, jobs.refresh) == (True, False, "redis://localhost/1", 0.0)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.toml", '[node]\nnmae = "x"\n\n[cluster]\nlease = "long"\n')
    lines = refused(path, {"COORDD_HISTORY_KEPT": "1d"}).split("\n")
    assert [line.split(": ")[0] for line in lines] == [f"{path}:2", f"{path}:5", "environment"]


def test_the_timing_rule_is_met_exactly() -> None:
    # 5 + 2 x 2 + 10 + 0.02 x lease = lease, at 19 / 0.98.
    assert load(None, {"COORDD_CLUSTER_LEASE": "19.3878"})
    assert "more than cluster.lease" in refused(None, {"COORDD_CLUSTER_LEASE": "19.3876"})


# ---- across machines


@pytest.fixture
def ring(tmp_path: Path) -> str:
    """A good keyring."""
    path = tmp_path / "keys.toml"
    path.write_text(keyring.render(Keyring((Key("k1", "sign", b"s" * 32),))))
    path.chmod(0o600)
    return str(path)


REDIS = "rediss://redis.example/0"


def settings(path: Path, **cluster: object) -> str:
    """A file with these keys of [cluster]; a bus across machines comes with a ledger that all can reach."""
    if "bus" in cluster:
        cluster = {**cluster, "ledger": cluster.get("ledger", REDIS)}
    lines = [
        f"{key} = {str(said).lower() if isinstance(said, bool) else json.dumps(said)}" for key, said in cluster.items()
    ]
    return write(path / "c.toml", "\n".join(["[cluster]", *lines]))


@pytest.mark.parametrize(
    ("bus", "urls", "scheme"),
    [
        ("amqps://coordd@mq1:5671/coordd", ("amqps://coordd@mq1:5671/coordd",), "amqps"),
        (["amqps://mq1/v", "amqps://mq2/v"], ("amqps://mq1/v", "amqps://mq2/v"), "amqps"),
        ("amqps://mq1/v, amqps://mq2/v,", ("amqps://mq1/v", "amqps://mq2/v"), "amqps"),
        ("amqps://u:a,b@mq1/v,amqps://mq2/v", ("amqps://u:a,b@mq1/v", "amqps://mq2/v"), "amqps"),
        ("amqp://localhost/%2F", ("amqp://localhost/%2F",), "amqp"),
        ("amqp://127.0.0.1:5672", ("amqp://127.0.0.1:5672",), "amqp"),
        ("amqp://[::1]:5672/", ("amqp://[::1]:5672/",), "amqp"),
        ("redis://127.1.2.3/3", ("redis://127.1.2.3/3",), "redis"),
        ("rediss://r.example:6380/0", ("rediss://r.example:6380/0",), "rediss"),
    ],
)
def test_a_bus_across_machines(tmp_path: Path, ring: str, bus: object, urls: tuple[str, ...], scheme: str) -> None:
    cluster = load(settings(tmp_path, bus=bus, keyring=ring), {}).cluster
    assert (cluster.bus_urls, cluster.bus_scheme) == (urls, scheme)
    assert (cluster.is_embedded, cluster.is_signed, cluster.verifies_ledger) == (False, True, True)
    if isinstance(bus, str):
        environ = {"COORDD_CLUSTER_BUS": bus, "COORDD_CLUSTER_KEYRING": ring, "COORDD_CLUSTER_LEDGER": REDIS}
        assert load(None, environ).cluster.bus_urls == urls


SPLIT = [
    ('bus = "amqps://mq1/v"\n', "amqps://", "is (the default) sqlite:////var/lib/coordd/ledger.db"),
    ('bus = ["amqp://localhost/v", "amqp://localhost:1/v"]\n', "amqp://", "(the default)"),
    ('bus = "redis://localhost/0"\n', "redis://", "(the default)"),
    ('ledger = "sqlite:////srv/l.db"\nbus = "rediss://r/0"\n', "rediss://", "is sqlite:////srv/l.db, a file on"),
]


@pytest.mark.parametrize(("lines", "scheme", "shown"), SPLIT)
def test_a_bus_across_machines_with_the_ledger_of_one_machine_is_refused(
    tmp_path: Path, ring: str, lines: str, scheme: str, shown: str
) -> None:
    """Each node would have a ledger of its own: every job would run on every node."""
    path = write(tmp_path / "c.toml", f'[cluster]\n{lines}keyring = "{ring}"\n')
    message = refused(path)
    assert message.startswith(f"{path}:2: cluster.ledger: " if "ledger" in lines else f"{path}: cluster.ledger: ")
    for words in (f"cluster.bus ({scheme})", shown, "every job would run on every node", "Set cluster.ledger to"):
        assert words in message
    done = CliRunner().invoke(program, ["check-config", path])
    assert done.exit_code == 78
    assert "cluster.ledger: cluster.bus" in done.output
    assert load(path, {"COORDD_CLUSTER_LEDGER": REDIS}).cluster.ledger == REDIS
    embedded = {"COORDD_CLUSTER_BUS": "unix:///run/coordd/bus"}
    assert load(path, embedded).cluster.ledger_scheme == "sqlite"


def test_the_embedded_bus_needs_no_keyring() -> None:
    cluster = load(None, {"COORDD_CLUSTER_KEYRING": "/nowhere/keys.toml"}).cluster
    assert (cluster.is_embedded, cluster.is_signed) == (True, False)
    assert cluster.bus_urls == ("unix:///run/coordd/bus",)


@pytest.mark.parametrize(
    ("ledger", "scheme"),
    [
        ("redis://localhost:6379/0", "redis"),
        ("rediss://user@r.example/1", "rediss"),
        ("redis+sentinel://localhost:26379,127.0.0.1:26380,[::1]:26381/coordd/0", "redis+sentinel"),
        ("redis+sentinel://localhost/coordd", "redis+sentinel"),
        ("rediss+sentinel://s1,s2:26380/coordd/3", "rediss+sentinel"),
    ],
)
def test_a_ledger_across_machines(ledger: str, scheme: str) -> None:
    cluster = load(None, {"COORDD_CLUSTER_LEDGER": ledger}).cluster
    assert (cluster.ledger, cluster.ledger_scheme) == (ledger, scheme)


INSECURE = [
    ({"bus": "amqp://mq1/"}, "cluster.bus", "amqp:// to mq1 is not encrypted"),
    ({"bus": "redis://10.0.0.1/"}, "cluster.bus", "use rediss://"),
    ({"bus": "redis://localhost.example.com/"}, "cluster.bus", "not encrypted"),
    ({"bus": ["amqp://localhost/", "amqp://mq2/"]}, "cluster.bus", "amqp:// to mq2 is not encrypted"),
    ({"bus": "amqps://mq1/?no_verify_ssl=1"}, "cluster.bus", "no_verify_ssl in the URL believes any"),
    ({"bus": "amqps://mq1/?No_Verify_SSL=true"}, "cluster.bus", "believes any"),
    ({"bus": "amqps://localhost/?no_verify_ssl"}, "cluster.bus", "believes any"),
    ({"bus": "rediss://r/?ssl_cert_reqs=none"}, "cluster.bus", "believes any"),
    ({"ledger": "rediss://r/0?ssl_check_hostname=false"}, "cluster.ledger", "believes any"),
    ({"ledger": "redis://r/0"}, "cluster.ledger", "redis:// to r is not encrypted"),
    ({"ledger": "redis+sentinel://localhost:1,s2:2,s3/m"}, "cluster.ledger", "use rediss+sentinel://"),
]


@pytest.mark.parametrize(("cluster", "key", "said"), INSECURE)
def test_what_is_not_safe_is_refused_unless_allowed_by_name(
    tmp_path: Path, ring: str, cluster: dict[str, object], key: str, said: str
) -> None:
    message = refused(settings(tmp_path, keyring=ring, **cluster))
    assert f"{key}: " in message
    assert said in message
    assert "allow_insecure = true" in message
    allowed = load(settings(tmp_path, keyring=ring, allow_insecure=True, **cluster), {})
    assert [problem.key for problem in safety.warnings(allowed)] == [key]
    assert said in str(safety.warnings(allowed)[0])
    assert allowed.cluster.verifies_ledger == ("believes" not in said or key == "cluster.bus")


@pytest.mark.parametrize("url", ["amqps://mq1/?no_verify_ssl=0", "rediss://r/?ssl_cert_reqs=required&x=1"])
def test_what_leaves_the_verification_on_is_safe(tmp_path: Path, ring: str, url: str) -> None:
    assert load(settings(tmp_path, keyring=ring, bus=url), {}).cluster.verifies_ledger


def test_a_missing_keyring_says_how_to_make_one(tmp_path: Path) -> None:
    path = settings(tmp_path, bus="amqps://mq1/", keyring=f"{tmp_path}/none.toml")
    message = refused(path)
    assert f"{path}:3: cluster.keyring: {tmp_path}/none.toml: there is no such keyring" in message
    assert f"coordd keys new --output {tmp_path}/none.toml" in message
    assert "unsigned = true" in message


def test_a_keyring_that_others_may_read_is_refused(tmp_path: Path, ring: str) -> None:
    os.chmod(ring, 0o644)
    assert "expected mode 0600" in refused(settings(tmp_path, bus="amqps://mq1/", keyring=ring))


def test_unsigned_draws_a_warning_and_needs_no_keyring(tmp_path: Path) -> None:
    loaded = load(settings(tmp_path, bus="amqps://mq1/", unsigned=True), {})
    assert not loaded.cluster.is_signed
    [warning] = safety.warnings(loaded)
    assert (warning.key, warning.severity) == ("cluster.unsigned", "warning")
    assert "can speak as any node" in warning.message
    assert safety.warnings(load(settings(tmp_path, unsigned=True), {})) == [], "a unix bus is never signed"


@pytest.mark.parametrize("key", ["tls_ca", "tls_cert", "bus_password_file", "ledger_password_file"])
def test_files_must_be_there(tmp_path: Path, key: str) -> None:
    missing = f"{tmp_path}/none"
    assert f"cluster.{key}: {missing}: it cannot be read: No such file or directory" in refused(
        settings(tmp_path, **{key: missing})
    )
    assert "expected a regular file" in refused(settings(tmp_path, **{key: "/dev/null"}))
    there = write(tmp_path / "there", "x")
    os.chmod(there, 0o600)
    assert getattr(load(settings(tmp_path, **{key: there}), {}).cluster, key) == there


def test_a_key_without_its_certificate_is_refused(tmp_path: Path) -> None:
    there = write(tmp_path / "there", "x")
    assert "cluster.tls_key: a key needs its certificate" in refused(settings(tmp_path, tls_key=there))


@pytest.mark.parametrize(
    ("cluster", "key"),
    [
        ({"bus": "amqps://u:hunter2@mq1/"}, "cluster.bus"),
        ({"bus": ["amqps://mq1/", "amqps://u:hunter2@mq2/"]}, "cluster.bus"),
        ({"ledger": "rediss://:hunter2@r/"}, "cluster.ledger"),
        ({"ledger": "rediss://r/?password=hunter2"}, "cluster.ledger"),
    ],
)
def test_a_password_in_a_url_works_and_draws_a_warning(
    tmp_path: Path, ring: str, cluster: dict[str, object], key: str
) -> None:
    loaded = load(settings(tmp_path, keyring=ring, **cluster), {})
    [warning] = safety.warnings(loaded)
    assert (warning.key, warning.severity) == (key, "warning")
    assert f"{key.removeprefix('cluster.')}_password_file" in warning.message
    assert "hunter2" not in str(warning) + str(loaded.redacted())


def test_a_password_file_that_everybody_reads_is_refused(tmp_path: Path) -> None:
    there = write(tmp_path / "password", "x")
    os.chmod(there, 0o640)
    assert safety.warnings(load(settings(tmp_path, bus_password_file=there), {})) == [], "our own group may read it"
    os.chmod(there, 0o644)
    assert f"cluster.bus_password_file: {there}: other users may read it (mode 0644)" in refused(
        settings(tmp_path, bus_password_file=there)
    )


def test_check_config_prints_warnings_and_passes(tmp_path: Path, ring: str) -> None:
    path = settings(tmp_path, bus="amqps://u:hunter2@mq1/", keyring=ring)
    done = CliRunner().invoke(program, ["check-config", path], env={"COORDD_NODE_JOBS_DIR": str(tmp_path)})
    assert "cluster.bus: warning: the URL contains the password" in done.stdout
    assert "hunter2" not in done.output
    assert done.exit_code == 65, "the directory holds a file that is not a job"
    jobs = tmp_path / "jobs.d"
    jobs.mkdir()
    done = CliRunner().invoke(program, ["check-config", path], env={"COORDD_NODE_JOBS_DIR": str(jobs)})
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "ok: 0 jobs")


def test_every_address_is_shown_without_its_password(tmp_path: Path, ring: str) -> None:
    shown = load(settings(tmp_path, bus=["amqps://u:a@mq1/v", "amqps://u:b@mq2/v"], keyring=ring), {}).redacted()
    assert shown["cluster"]["bus"] == "amqps://u:***@mq1/v,amqps://u:***@mq2/v"


def test_passwords_are_not_shown() -> None:
    config = Config(
        cluster=ClusterConfig(bus="amqp://u:hunter2@h/v", ledger="redis://:hunter2@h:6379/0?password=hunter2"),
        spark=SparkConfig(env={"DB_PASSWORD": "hunter2", "JDBC": "jdbc:x://u:hunter2@h", "LANG": "C"}),
    )
    shown = config.redacted()
    assert "hunter2" not in str(shown)
    assert shown["cluster"]["bus"] == "amqp://u:***@h/v"
    assert shown["spark"]["env"]["LANG"] == "C"
    assert config.cluster.bus == "amqp://u:hunter2@h/v"


@pytest.mark.parametrize(
    ("fqdn", "hostname", "name"),
    [
        ("edge-1.example.com", "edge-1", "edge-1.example.com"),
        ("localhost", "edge-1", "edge-1"),
        ("localhost.localdomain", "edge-1", "edge-1"),
        ("edge_1 (new)", "x", "edge_1--new-"),
        ("é" * 80, "x", "-" * 64),
    ],
)
def test_the_default_name_is_the_hosts(fqdn: str, hostname: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: fqdn)
    monkeypatch.setattr(socket, "gethostname", lambda: hostname)
    assert load(None, {}).node.name == name
