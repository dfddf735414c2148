"""Configuration: TOML and environment become frozen types or error messages.

Keys, defaults and units are those of /etc/coordd/coordd.toml. Durations are seconds; in the history section they are
texts such as "90d". This file also checks relations between settings.
"""

from __future__ import annotations

import os
import re
import socket
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import msgspec

from coordd.config import addresses, safety, values
from coordd.config.checks.breakers import read_breakers
from coordd.config.checks.reading import read_checks
from coordd.config.hooks import sinks as outcomes
from coordd.config.hooks.hook import of_lineage, read_hooks, read_lineage_url
from coordd.config.hooks.publisher import read_publishers
from coordd.config.hooks.sink import read_sinks
from coordd.config.plugged.boot import read_boot
from coordd.config.plugged.services import read_services
from coordd.config.sections import (
    BACKENDS,
    PYTHON,
    REDIS,
    Budget,
    ClusterConfig,
    Config,
    ControlConfig,
    GuardConfig,
    HistoryConfig,
    JobsConfig,
    LineageConfig,
    MetricsConfig,
    MirrorConfig,
    NodeConfig,
    SparkConfig,
    TracingConfig,
    TriggersConfig,
)
from coordd.config.sinks import address as sinks
from coordd.config.tomlfile import Places, Problem, read_toml
from coordd.config.tracing import endpoint
from coordd.config.values import Reader, converted, found
from coordd.core.jobs.arguments import nearest
from coordd.core.jobs.schedule import parse_duration
from coordd.core.ledger.words import RHO
from coordd.core.node.room import PRIORITIES
from coordd.errors import ConfigError
from coordd.plugins import CONFIG_BACKENDS

CONFIG_PATH = "/etc/coordd/coordd.toml"

# sockaddr_un has 108 bytes, and the last one is NUL. A bus socket is named after its node and pid.
SOCKET_BYTES_MAX = 107
PID_BYTES = len(".4194304")
RUNTIME_SOCKET_BYTES = len("/coordd.sock")  # the longest name directly in the runtime directory

BUS_SCHEMES = ("unix", "amqp", "amqps", "redis", "rediss")
CALL = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
AMQP_SCHEMES = ("amqp", "amqps")
EXCHANGE = re.compile(r"[A-Za-z0-9._:-]{1,200}", re.ASCII)
STORE_SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")
LEDGER_SCHEMES = ("sqlite", *STORE_SCHEMES)

# RabbitMQ's exchange for a cluster's inboxes has the cluster's name and this suffix.
INBOX_SUFFIX = ".inbox"

BUDGET_MAX = 10_000

# Which runs get a systemd unit: those with run_as or limits, all, none.
UNITS = ("auto", "on", "off")
# Of OpenLineage (bytes): it is in every event.
NAMESPACE_MAX = 200

# Each has a Java machine with some hundred megabytes.
PREPARED_MAX = 16

# A ledger keeps at most this many runs.
RUNS_MAX = 1_000_000_000

# Limits of durations: with less, nodes do nothing but wait for each other; more is a typing error.
SECONDS_MIN = 0.01
SECONDS_MAX = 86400.0
KEPT_S_MAX = 366 * 86400.0
# Of a function that makes jobs: the longest timeout (a start of the daemon waits for it), and the least pause.
CALL_S_MAX = 60.0
REFRESH_S_MIN = 1.0


# ---- readers of composite settings


def _priority(value: object) -> str:
    return values.strategy(value, "", *PRIORITIES)


def _budget(value: object) -> Budget:
    table = converted(value, dict[str, int | str], "a table { client = 2, cluster = 20 }")
    for key, count in table.items():
        if key not in Budget.__struct_fields__:
            raise ValueError(f'unknown key "{key}"; {nearest(key, Budget.__struct_fields__)}')
        if key == "client" and isinstance(count, str):
            values.strategy(count, "auto")
        elif isinstance(count, str) or not 0 <= count <= BUDGET_MAX:
            raise ValueError(f"expected 0 to {BUDGET_MAX} runs for {key}, found {values.found(count)}")
    budget = Budget(**table)
    if not isinstance(budget.client, str) and {"min", "max"} & set(table):
        raise ValueError(f'min and max bound a strategy (client = "auto"), and client is the number {budget.client}')
    if budget.min > budget.max:
        raise ValueError(f"min ({budget.min}) is above max ({budget.max})")
    return budget


def _duration_text(value: object) -> str:
    if isinstance(value, (int, float)):
        value = f"{value}s"
    read = values.text(value)
    if parse_duration(read) <= 0:
        raise ValueError(f'expected a duration above zero, found "{read}"')
    return read


def _seconds(value: object) -> float:
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise ValueError(f"expected a duration, found {found(value)}")  # noqa: TRY004  # as all readers
    seconds = parse_duration(value)
    if not 0 <= seconds <= KEPT_S_MAX:
        raise ValueError(f"expected a duration up to {KEPT_S_MAX / 86400:.0f} days, found {seconds:g} s")
    return seconds


def _size_text(value: object) -> str:
    read = values.text(value)
    values.parse_size(read)
    return read


def _bus(value: object) -> str:
    """One address or several, joined into one text."""
    said = values.texts(value) if isinstance(value, list) else addresses.split(values.text(value))
    if not said:
        raise ValueError("expected an address or a list of them, found none")
    for url in said:
        addresses.check(url, BUS_SCHEMES)
    schemes = sorted({url.partition("://")[0] for url in said})
    if len(schemes) > 1:
        raise ValueError(f"expected addresses with the same scheme; found {' and '.join(schemes)}")
    if schemes == ["unix"] and len(said) > 1:
        raise ValueError("a unix bus has one address: its directory is on this machine")
    return ",".join(said)


def _ledger(value: object) -> str:
    url = values.text(value)
    addresses.check(url, LEDGER_SCHEMES)
    return url


def _cluster_name(value: object) -> str:
    """Refuses names in ``INBOX_SUFFIX``: RabbitMQ's exchange for the inboxes of cluster ``x`` is ``x.inbox``."""
    read = values.name(value)
    if read.endswith(INBOX_SUFFIX):
        named = f"the broker uses this name for the inboxes of the cluster {found(read.removesuffix(INBOX_SUFFIX))}"
        raise ValueError(f"expected a name that does not end in {INBOX_SUFFIX}, found {found(read)}: {named}")
    return read


def _store(value: object) -> str:
    """The address of the Redis that keeps published revisions, or ""."""
    url = values.text(value)
    if url:
        addresses.check(url, STORE_SCHEMES)
    return url


def _mirror(value: object) -> str:
    """The address of a RabbitMQ, ``bus``, or ""."""
    url = values.text(value)
    if url not in ("", "bus"):
        addresses.check(url, AMQP_SCHEMES)
    return url


def _exchange(value: object) -> str:
    read = values.text(value)
    if read and not EXCHANGE.fullmatch(read):
        raise ValueError(f"expected up to 200 of the characters A-Z a-z 0-9 . _ : -, found {found(read)}")
    return read


def _call(value: object) -> str:
    """MODULE:FUNCTION, or ""."""
    read = values.text(value)
    if read and not CALL.fullmatch(read):
        raise ValueError(f'expected a module and its function, such as "site_jobs:jobs", found {found(read)}')
    return read


def _namespace(value: object) -> str:
    """A namespace of OpenLineage, or ""."""
    read = values.text(value)
    if len(read.encode("utf-8", "surrogatepass")) > NAMESPACE_MAX:
        raise ValueError(f"expected at most {NAMESPACE_MAX} bytes, found more")
    return read


def _conf_allow(value: object) -> tuple[str, ...]:
    read = values.texts(value)
    if wrong := [text for text in read if not re.fullmatch(r"spark\.[A-Za-z0-9._*-]{1,200}", text, re.ASCII)]:
        raise ValueError(f'expected keys such as "spark.executor.*", found {found(wrong[0])}')
    return read


def _backend(value: object) -> str:
    return values.brought(value, CONFIG_BACKENDS, "a configuration backend", *BACKENDS)


SECTIONS: dict[str, type[msgspec.Struct]] = {
    "node": NodeConfig,
    "cluster": ClusterConfig,
    "spark": SparkConfig,
    "control": ControlConfig,
    "history": HistoryConfig,
    "metrics": MetricsConfig,
    "guard": GuardConfig,
    "triggers": TriggersConfig,
    "tracing": TracingConfig,
    "lineage": LineageConfig,
    "mirror": MirrorConfig,
    "jobs": JobsConfig,
}
# Those with a reader of their own, and a field of Config for each.
_LISTS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "hook": ("hooks", read_hooks),
    "check": ("checks", read_checks),
    "breakers": ("breakers", read_breakers),
    "sink": ("sinks", read_sinks),
    "publish": ("publishers", read_publishers),
    "service": ("services", read_services),
    "boot": ("boot", read_boot),
}
# Of these, the readers that say which key of which section is wrong.
_NAMED = ("sink", "publish")
# Sections that this version does not implement.
LATER = ("limits",)

_BY_TYPE: dict[Any, Reader] = {
    str: values.text,
    float: values.number,
    bool: values.flag,
    tuple[str, ...]: values.tags,
    dict[str, str]: values.text_table,
    Budget: _budget,
}
_BY_KEY: dict[str, Reader] = {
    "node.name": values.name,
    "node.units": values.one_of(*UNITS),
    "cluster.name": _cluster_name,
    "cluster.bus": _bus,
    "cluster.ledger": _ledger,
    "cluster.priority": _priority,
    "jobs.backend": _backend,
    "jobs.url": _store,
    "jobs.call": _call,
    "jobs.password_file": values.path_or_none,
    **dict.fromkeys(("history.journal_sink", "history.log_sink"), sinks.read_url),
    **dict.fromkeys(("history.sink_put", "history.sink_get"), sinks.read_command),
    **dict.fromkeys(("node.state_dir", "node.runtime_dir", "node.jobs_dir", "control.socket"), values.path),
    **dict.fromkeys(
        ("spark.submit", "spark.env_file", "spark.properties_file", "spark.yarn_command", "cluster.keyring"),
        values.path_or_none,
    ),
    **dict.fromkeys(("spark.settle", "spark.retention"), _seconds),
    "spark.prepared": values.whole(0, PREPARED_MAX),
    "spark.conf_allow": _conf_allow,
    **dict.fromkeys(("cluster.tls_ca", "cluster.tls_cert", "cluster.tls_key"), values.path_or_none),
    **dict.fromkeys(("cluster.bus_password_file", "cluster.ledger_password_file"), values.path_or_none),
    **dict.fromkeys(("history.keep", "history.logs_keep", "history.journal_keep"), _duration_text),
    **dict.fromkeys(("history.logs_size", "history.journal_size"), _size_text),
    "history.keep_runs": values.whole(0, RUNS_MAX),
    "metrics.listen": addresses.listening,
    "guard.listen": addresses.listening,
    "triggers.listen": addresses.listening,
    "guard.addresses": addresses.all_listening,
    "metrics.textfile": values.path_or_none,
    "tracing.otlp": endpoint.read_url,
    "lineage.url": read_lineage_url,
    "lineage.namespace": _namespace,
    "lineage.token_file": values.path_or_none,
    "mirror.url": _mirror,
    "mirror.exchange": _exchange,
    "mirror.password_file": values.path_or_none,
}


@cache  # looking up a class's fields takes as long as reading a small file
def _kinds(section: str) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(SECTIONS[section])}


def _readers(section: str) -> dict[str, Reader]:
    return {key: _BY_KEY.get(f"{section}.{key}") or _BY_TYPE[kind] for key, kind in _kinds(section).items()}


# ---- loading


def load(path: str | None, environ: Mapping[str, str]) -> Config:
    """The configuration: the file, overridden by the environment.

    ``path`` None: COORDD_CONFIG, then /etc/coordd/coordd.toml if there is one, else the defaults alone.
    Raises ConfigError with every problem, one a line.
    """
    config, problems = read_config(path, environ)
    if config is None:
        raise ConfigError("\n".join([str(problem) for problem in problems]))
    return config


def read_config(path: str | None, environ: Mapping[str, str]) -> tuple[Config | None, list[Problem]]:
    """The configuration, or None and the problems."""
    source = path or environ.get("COORDD_CONFIG") or (CONFIG_PATH if _is_there(CONFIG_PATH) else "")
    problems: list[Problem] = []
    variables: dict[str, str] = {}  # the variable that each setting came from, if any
    places = Places("")
    settings: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    pools: dict[str, int] = {}
    lists: dict[str, Any] = {}  # sections with a reader of their own

    def report(setting: str, message: str) -> None:
        if setting in variables:
            problems.append(Problem("environment", variables[setting], None, message, kind="config"))
        else:
            section, _, key = setting.rpartition(".")
            line = places.line_of(section, key)
            problems.append(Problem(values.printable(source) or "defaults", setting, line, message, kind="config"))

    if source:
        content, tables, problem = read_toml(source, "config")
        if problem:
            return None, [problem]
        places = Places(content)
        for section, table in tables.items():
            if len(problems) > values.UNKNOWN_MAX:
                break  # not a configuration at all
            if section in LATER:
                report(section, f"[{section}] is not available in this version")
            elif section in _LISTS:
                field, read = _LISTS[section]
                lists[field] = read(table, report if section in _NAMED else partial(report, section))
            elif section == "pools" and isinstance(table, dict):
                pools = values.read_pools(table, partial(_report_in, report, section))
            elif section not in SECTIONS:
                shown = values.printable(section[:60])
                report(shown, f'unknown section "{shown}"; {nearest(shown, (*SECTIONS, *_LISTS, "pools"))}')
            elif not isinstance(table, dict):
                report(section, f"expected a table, found {found(table)}")
            else:
                settings[section] = values.read_table(table, _readers(section), partial(_report_in, report, section))
    for variable, section, key in _variables(environ):
        variables[f"{section}.{key}"] = variable
        if key not in _readers(section):
            near = nearest(variable, [_variable(section, known) for known in _readers(section)])
            report(f"{section}.{key}", f'unknown setting "{variable}"; {near}')
            continue
        one = {key: _from_environment(environ[variable], _kinds(section)[key])}
        settings[section].update(values.read_table(one, _readers(section), partial(_report_in, report, section)))
    if not problems:
        by_host = "name" not in settings["node"]
        settings["node"].setdefault("name", default_node_name())
        sections: dict[str, Any] = {section: SECTIONS[section](**settings[section]) for section in SECTIONS}
        config = _with_lineage(Config(**sections, **lists, pools=pools, path=source, called_by_host=by_host))
        for setting, message in (*_conflicts(config), *safety.problems(config, environ)):
            report(setting, message)
    return (None, problems) if problems else (config, [])


def _with_lineage(config: Config) -> Config:
    """The receiver of lineage is called as hooks are."""
    url, token_file = config.lineage.url, config.lineage.token_file
    if not url:
        return config
    return msgspec.structs.replace(config, hooks=(*config.hooks, of_lineage(url, config.lineage_namespace, token_file)))


def _is_there(path: str) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # the file may exist, and must not be replaced silently by the defaults
    return True


def _report_in(report: Callable[[str, str], None], section: str, key: str, message: str) -> None:
    report(f"{section}.{key}", message)


def _variable(section: str, key: str) -> str:
    return f"COORDD_{section}_{key}".upper()


def _variables(environ: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(variable, section, key) of every variable that looks like a setting.

    COORDD_RUN, COORDD_NODE and the other variables of a run have no key, so they are left out.
    """
    return [
        (variable, section, variable.removeprefix(f"COORDD_{section.upper()}_").lower())
        for variable in sorted(environ)
        for section in SECTIONS
        if variable.startswith(f"COORDD_{section.upper()}_")
    ]


def _from_environment(raw: str, kind: Any) -> Any:
    """The text of a variable as a TOML value. Text that is not TOML is returned unchanged; the setting's reader rejects
    it.
    """
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(raw.lower(), raw)
    if kind is float:
        try:
            return float(raw)
        except ValueError:
            return raw
    if raw.startswith(("[", "{")):
        try:
            return tomllib.loads(f"value = {raw}")["value"]
        except (ValueError, RecursionError):
            return raw
    if kind == tuple[str, ...]:
        return [item.strip() for item in raw.split(",") if item.strip()]
    return raw


def default_node_name() -> str:
    """The host's fully qualified name; characters that a node's name must not have become "-"."""
    host = socket.getfqdn()
    if host.startswith(("localhost", "ip6-localhost")):
        host = socket.gethostname()  # every host calls itself "localhost"
    return re.sub(r"[^A-Za-z0-9._-]", "-", host)[:64] or "localhost"


def keyring_path(environ: Mapping[str, str]) -> str:
    """The configured path of the keyring, even if the keyring is missing and the configuration therefore invalid."""
    path = environ.get("COORDD_CONFIG") or (CONFIG_PATH if _is_there(CONFIG_PATH) else "")
    table = read_toml(path, "config")[1].get("cluster") if path else None
    said = table.get("keyring") if isinstance(table, dict) else None
    found_there = said if isinstance(said, str) and said.startswith("/") else ""
    return environ.get("COORDD_CLUSTER_KEYRING") or found_there or ClusterConfig().keyring


# ---- relations between settings


def timing_conflict(lease_s: float, cluster: ClusterConfig, setting: str) -> str:
    """Why a lease is too short for the work that must fit into it, or ""."""
    needed_s = cluster.renew_interval + 2 * cluster.ledger_timeout + cluster.kill_grace + 2 * RHO * lease_s
    if needed_s <= lease_s + 1e-9:
        return ""
    return (
        f"cluster.renew_interval ({cluster.renew_interval:g} s) + 2 x cluster.ledger_timeout"
        f" ({cluster.ledger_timeout:g} s) + cluster.kill_grace ({cluster.kill_grace:g} s)"
        f" + {2 * RHO:.0%} of {setting} are {needed_s:g} s, more than {setting} ({lease_s:g} s):"
        f" raise {setting} or lower the others"
    )


def _conflicts_of_jobs(config: Config) -> Iterator[tuple[str, str]]:
    jobs, scheme = config.jobs, config.cluster.ledger_scheme
    if jobs.published and not jobs.url and scheme not in STORE_SCHEMES:
        why = f"keeps the revisions in the Redis of the ledger, and cluster.ledger is {scheme}://"
        yield (
            "jobs.url",
            f'backend = "redis" {why}: name a server with jobs.url, such as {addresses.EXAMPLES["rediss"]}',
        )
    if jobs.backend == PYTHON and not jobs.call:
        yield "jobs.call", 'backend = "python" needs a function: jobs.call = "MODULE:FUNCTION"'
    if not SECONDS_MIN <= jobs.timeout <= CALL_S_MAX:
        yield "jobs.timeout", f"expected {SECONDS_MIN:g} to {CALL_S_MAX:g} seconds, found {jobs.timeout:g}"
    if jobs.refresh != 0.0 and not REFRESH_S_MIN <= jobs.refresh <= SECONDS_MAX:
        yield (
            "jobs.refresh",
            f"expected {REFRESH_S_MIN:g} to {SECONDS_MAX:g} seconds, or 0 for never, found {jobs.refresh:g}",
        )


def _conflicts(config: Config) -> Iterator[tuple[str, str]]:
    """(setting, sentence) for each relation that is violated."""
    yield from _conflicts_of_jobs(config)
    yield from sinks.conflicts(config.history)
    yield from outcomes.conflicts(config)
    for section, tls in (("guard", config.guard.tls), ("triggers", config.triggers.tls)):
        if tls and not config.cluster.tls_cert:
            yield f"{section}.tls", "the listener shows the certificate of this node: set cluster.tls_cert"
    cluster = config.cluster
    if not cluster.gossip and config.jobs.backend == REDIS:
        yield "cluster.gossip", "a published revision needs gossip: it comes into force when every node has it"
    positive = ("heartbeat_interval", "election_timeout", "lease", "renew_interval", "ledger_timeout", "kill_grace")
    absurd = False
    for key in (*positive, "mingle_timeout"):
        least = SECONDS_MIN if key in positive else 0
        seconds = getattr(cluster, key)
        if not least <= seconds <= SECONDS_MAX:
            absurd = True
            yield f"cluster.{key}", f"expected {least:g} to {SECONDS_MAX:g} seconds, found {seconds:g}"
    if absurd:
        return  # the checks below would only repeat it
    timing = timing_conflict(cluster.lease, cluster, "cluster.lease")
    if timing:
        yield "cluster.lease", timing
    for key in ("heartbeat_interval", "election_timeout", "mingle_timeout"):
        seconds = getattr(cluster, key)
        if seconds > cluster.lease:
            longer = f"cluster.{key} ({seconds:g} s) is longer than cluster.lease ({cluster.lease:g} s)"
            yield f"cluster.{key}", f"{longer}: leases would lapse before nodes hear of each other"
    rule = f"a unix socket's path has at most {SOCKET_BYTES_MAX} bytes"
    control_bytes = len(config.control.socket.encode())
    if control_bytes > SOCKET_BYTES_MAX:
        yield "control.socket", f"{rule}; control.socket has {control_bytes}"
    runtime_bytes = len(config.node.runtime_dir.encode()) + RUNTIME_SOCKET_BYTES
    if runtime_bytes > SOCKET_BYTES_MAX:
        yield "node.runtime_dir", f"{rule}; the paths in node.runtime_dir would have {runtime_bytes}"
    if not cluster.is_embedded:
        if cluster.ledger_scheme == "sqlite":
            yield "cluster.ledger", _local_ledger(cluster)
        return
    bus_bytes = len(f"{cluster.bus_path}/{config.node.name}".encode()) + PID_BYTES
    if bus_bytes > SOCKET_BYTES_MAX:
        yield "cluster.bus", f"{rule}; the directory of cluster.bus, node.name and a pid need {bus_bytes}"


def _local_ledger(cluster: ClusterConfig) -> str:
    """Why nodes on several machines cannot use one machine's file as their ledger."""
    default = " (the default)" if cluster.ledger == ClusterConfig().ledger else ""
    return (
        f"cluster.bus ({cluster.bus_scheme}://) connects several machines, but cluster.ledger is{default}"
        f" {values.printable(cluster.ledger)}, a file on this machine: each node would use a ledger of its own,"
        f" and every job would run on every node. Set cluster.ledger to the Redis that all nodes share, as in"
        ' ledger = "rediss://redis.example:6379/0"; for a single machine set cluster.bus = "unix:///run/coordd/bus"'
    )
