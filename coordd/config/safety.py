"""Settings that would expose the cluster: unsafe addresses, files that others may read or write, a keyring that is not
secret.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from coordd.config import addresses, keyring, ownership, values
from coordd.config.tomlfile import Problem
from coordd.config.tracing import endpoint
from coordd.errors import ConfigError

if TYPE_CHECKING:
    from coordd.config.sections import ClusterConfig, Config, HistoryConfig


# What `[cluster] gossip = false` gives up: the end of a sentence.
LOST_WITHOUT_GOSSIP = (
    "nodes do not know of each other: each asks the ledger for every run, whatever the load and the placement; a dead"
    " node is noticed when its leases end, and nobody is told; cancels and drains wait for the next look at the ledger;"
    " each node polls triggers and checks; logs are read on their own node; nobody notices a node with another ledger,"
    " with other job files, or with the name of another node"
)

# Of a sink, and of a destination of messages.
SECRETS = ("password_file", "token_file", "tls_ca")


def problems(config: Config, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The settings that are not safe, and why."""
    yield from missing(config.cluster, environ)
    yield from missing_of_others(config, environ)
    yield from changeable(config)


def missing(cluster: ClusterConfig, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(setting, sentence) for each setting that makes a connection unsafe or impossible."""
    for setting, urls in (("bus", cluster.bus_urls), ("ledger", (cluster.ledger,))):
        for why in [] if cluster.allow_insecure else [why for url in urls for why in addresses.insecure(url)]:
            yield f"cluster.{setting}", f"{why}; set [cluster] allow_insecure = true to accept that"
    for key in ("tls_ca", "tls_cert", "tls_key", "bus_password_file", "ledger_password_file"):
        path = getattr(cluster, key)
        why = _unreadable(path) or _exposed(key, path, environ) if path else ""
        if why:
            yield f"cluster.{key}", f"{values.printable(path)}: {why}"
    if cluster.tls_key and not cluster.tls_cert:
        yield "cluster.tls_key", "a key needs its certificate: set cluster.tls_cert too"
    if cluster.is_signed:
        try:
            keyring.load(cluster.keyring, environ)
        except ConfigError as exc:
            yield "cluster.keyring", str(exc)


def unsigned(cluster: ClusterConfig) -> str:
    """Why nobody may read secrets over the bus: the end of a sentence, or ""."""
    if cluster.is_signed or cluster.is_embedded or not cluster.gossip:
        return ""
    return "messages between nodes are not signed ([cluster] unsigned = true), so no node shows a log to another"


def missing_of_others(config: Config, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """As ``missing``, for the receiver of lineage, for the broker of the mirror, and for the Redis that keeps the
    published revisions. Who can write to that Redis chooses what runs here.
    """
    for setting, _, whys in _others(config):
        for why in [] if config.cluster.allow_insecure else whys:
            yield setting, f"{why}; set [cluster] allow_insecure = true to accept that"
    for setting, path in (
        ("lineage.token_file", config.lineage.token_file),
        ("jobs.password_file", config.jobs.password_file),
        ("mirror.password_file", config.mirror.password_file),
        *[(f"sink.{one.title}.{key}", getattr(one, key)) for one in config.sinks for key in SECRETS],
        *[(f"publish.{one.name}.{key}", getattr(one, key)) for one in config.publishers for key in SECRETS],
    ):
        why = _unreadable(path) or _exposed(setting, path, environ) if path else ""
        if why:
            yield setting, f"{values.printable(path)}: {why}"
    if config.mirror.on_bus and not (config.cluster.gossip and config.cluster.bus_scheme.startswith("amqp")):
        found = f"[cluster] bus is {config.cluster.bus_scheme}://" if config.cluster.gossip else "there is no gossip"
        yield (
            "mirror.url",
            f'"bus" needs RabbitMQ as the bus, and {found}: name a broker, as in amqps://user@broker:5671/',
        )


def _others(config: Config) -> Iterator[tuple[str, tuple[str, ...], list[str]]]:
    """(setting, addresses, why they are not safe) for each address that gets a secret, besides bus and ledger."""
    mirror = "" if config.mirror.on_bus else config.mirror.url
    for setting, url in (("jobs.url", config.jobs.url), ("mirror.url", mirror)):
        if url:
            yield setting, (url,), addresses.insecure(url)
    if config.lineage.url and config.lineage.token_file:  # without a token, events of runs may go in clear
        clear = addresses.in_clear(config.lineage.url)
        yield "lineage.url", (config.lineage.url,), [clear] if clear else []


def _exposed(key: str, path: str, environ: Mapping[str, str]) -> str:
    """Who else could read or change a file of secrets; "" if nobody."""
    found = os.stat(path)
    why = ownership.fault(path, found)
    if why or ownership.is_credential(path, environ):
        return why
    if key == "tls_key" and found.st_mode & 0o007:  # a group of several services often owns it (ssl-cert)
        return f"everybody may read it (mode {found.st_mode & 0o7777:04o}): chmod o-rwx {values.printable(path)}"
    return ownership.secret_fault(path, found) if key.endswith(("password_file", "token_file")) else ""


def changeable(config: Config) -> Iterator[tuple[str, str]]:
    """(setting, sentence) for each file that others could change and that this daemon runs, reads or writes."""
    node, spark = config.node, config.spark
    for setting, path, all_in_it in (
        ("node.jobs_dir", node.jobs_dir, True),
        ("node.state_dir", node.state_dir, True),
        ("node.runtime_dir", node.runtime_dir, True),
        ("spark.submit", spark.submit, False),
        ("spark.yarn_command", spark.yarn_command, False),
        ("spark.env_file", spark.env_file, False),
        ("spark.properties_file", spark.properties_file, False),
        *[("history", command[0], False) for command in (config.history.sink_put, config.history.sink_get) if command],
        *[("hook", hook.argv[0], False) for hook in config.hooks if hook.argv],
    ):
        why = ownership.fault(path, all_in_it=all_in_it) if path else ""
        if why:
            yield setting, why


def _unreadable(path: str) -> str:
    """Why a file cannot be used, or ""."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, ValueError) as exc:
        return f"it cannot be read: {getattr(exc, 'strerror', None) or exc}"
    return "" if regular else "expected a regular file"


# More drivers that compute than this for each processor are a typing error, or will stand in each other's way.
ABSURD = 64


# Instead of a password in the address of a setting: a setting for its file, and a systemd credential.
PASSWORDS = {
    "cluster.bus": ("bus_password_file", "bus_password"),
    "cluster.ledger": ("ledger_password_file", "ledger_password"),
    "jobs.url": ("jobs.password_file", "jobs_password"),
    "mirror.url": ("mirror.password_file", "mirror_password"),
}
# A history shorter than this (seconds) is rather a typing error.
DAY_S = 86400.0


def warnings(config: Config) -> list[Problem]:
    """Warnings: settings that work but give something up; check-config prints them, and the daemon logs them at each
    start.
    """
    cluster = config.cluster
    told: list[tuple[str, str]] = []
    for setting, urls, whys in (
        ("cluster.bus", cluster.bus_urls, [why for url in cluster.bus_urls for why in addresses.insecure(url)]),
        ("cluster.ledger", (cluster.ledger,), addresses.insecure(cluster.ledger)),
        *_others(config),
    ):
        if setting in PASSWORDS and any(addresses.has_password(url) for url in urls):
            better = f"{PASSWORDS[setting][0]}, or a systemd credential {PASSWORDS[setting][1]}"
            told.append((setting, f"the URL contains the password, visible to every reader of this file: {better}"))
        told += [(setting, f"{why} (allow_insecure = true)") for why in whys]
    if not cluster.gossip:
        told.append(("cluster.gossip", f"without gossip {LOST_WITHOUT_GOSSIP}"))
    if cluster.unsigned and cluster.gossip and not cluster.is_embedded:
        unsafe = "anybody who reaches the bus can speak as any node; for development only"
        told.append(("cluster.unsigned", f"{unsafe}: `coordd keys new` makes a keyring"))
    shown = values.printable(config.path) or "defaults"
    budget = config.node.budget
    most = budget.max if isinstance(budget.client, str) else budget.client
    if most > ABSURD * (os.cpu_count() or 1):
        many = f"{most} drivers that compute at a time, on {os.cpu_count() or 1} processors"
        told.append(("node.budget", f"{many}: each needs one, and memory; is it a typing error?"))
    told += _short(config.history)
    if untraced := endpoint.problem(config.tracing.otlp, os.environ):
        told.append(("tracing.otlp", untraced))
    return [Problem(shown, key, None, message, severity="warning", kind="config") for key, message in told]


def _short(history: HistoryConfig) -> Iterator[tuple[str, str]]:
    """A history of less than a day works, but hardly anybody wants it."""
    kept = {
        "keep": (history.keep, history.keep_s),
        "logs_keep": (history.logs_keep, history.logs_keep_s),
        "journal_keep": (history.journal_keep, history.journal_keep_s),
    }
    for key, (said, seconds) in kept.items():
        if seconds < DAY_S:
            number = said.removesuffix("s")
            meant = f'; a number means seconds: is "{number}d" meant?' if number.isdecimal() else ""
            yield f"history.{key}", f"expected at least a day, found {seconds:g} s: what is older is removed{meant}"
