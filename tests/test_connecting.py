"""From settings to connections: what a reload takes over, what it must not take over, and what a runner is told."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordd.config.sections import ClusterConfig
from coordd.connecting import REPLICA_LAG_S, Connections, url_of_ledger
from coordd.core.jobs.job import Command, Job
from coordd.errors import ConfigError
from coordd.ports import Published
from coordd.services.sealed_bus import SealedBus

NAME = "n1.1"
FILE = "/run/secrets/ledger"


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    write_ring(path, "a")
    return path


def write_ring(path: Path, ident: str) -> None:
    made_up = base64.b64encode(bytes(range(32))).decode()
    path.write_text(f'[[key]]\nid = "{ident}"\nstate = "sign"\nsecret = "{made_up}"\n')
    path.chmod(0o600)


def made(ring: Path, **changes: Any) -> Connections:
    settings = {"bus": "amqp://u@127.0.0.1/", "ledger": "redis://127.0.0.1/0", "keyring": str(ring), **changes}
    return Connections(ClusterConfig(**settings), NAME, {})


def sealed(connections: Connections) -> bytes:
    """The id of the key that seals a node's messages."""
    sent: list[bytes] = []
    assert isinstance(connections.bus, SealedBus)
    connections.bus.bus.publish = lambda data, confirmed=None: sent.append(data)  # type: ignore[method-assign]  # replaced for this test
    connections.bus.publish(b"x")
    return sent[0][4:12].rstrip(b"\0")


@pytest.mark.parametrize("where", [{"bus": "amqps://u@127.0.0.1/"}, {"ledger": "rediss://127.0.0.1/0"}])
def test_tls_files_that_cannot_be_used_stop_a_start(ring: Path, where: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="tls_ca"):
        made(ring, tls_ca=str(ring), **where)
    made(ring, tls_ca=str(ring))  # no connection needs them


@pytest.mark.parametrize("where", [{"bus": "amqps://u@127.0.0.1/"}, {"ledger": "rediss://127.0.0.1/0"}])
def test_a_reload_takes_over_all_or_nothing(ring: Path, where: dict[str, str]) -> None:
    connections = made(ring, **where)
    before = connections.cluster
    write_ring(ring, "b")
    with pytest.raises(ConfigError, match="tls_ca"):
        connections.use(msgspec.structs.replace(before, tls_ca=str(ring), lease=90.0))
    assert connections.cluster is before
    assert sealed(connections) == b"a"
    connections.use(msgspec.structs.replace(before, lease=90.0))
    assert (connections.cluster.lease, sealed(connections)) == (90.0, b"b")
    ring.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        connections.use(before)
    assert connections.cluster.lease == 90.0


def test_a_runner_is_told_paths_and_no_secrets(ring: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "redis://u:s3cret@127.0.0.1/0"
    connections = made(ring, ledger=url, ledger_password_file=FILE)
    assert connections.ledger_url == "redis://u@127.0.0.1/0"
    assert connections.ledger_options().get("password_file") == FILE
    assert "s3cret" not in str(connections.ledger_options())
    assert made(ring, ledger=url).ledger_options().get("password") == "s3cret"
    (tmp_path / "ledger_password").write_text("another")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    options = made(ring, ledger=url).ledger_options()
    assert (options["password_file"], "password" in options) == (str(tmp_path / "ledger_password"), False)


def test_the_quarantine_is_as_long_as_the_longest_lease_that_is_known_now(ring: Path) -> None:
    connections = made(ring, lease=60.0)
    ledger: Any = connections.open_ledger()

    def asked_s() -> float:
        return float(ledger.script("open", [])[4])

    assert asked_s() == 60.0 + REPLICA_LAG_S
    long = Job(name="long", digest="d", launch=Command(argv=("/bin/true",)), lease_s=600.0)
    reloaded = {"long": long}
    connections.jobs = lambda: reloaded  # a reload has brought this job
    assert asked_s() == connections.ledger_options()["quarantine_s"] == 600.0 + REPLICA_LAG_S
    connections.leased_s = lambda: 900.0  # an attempt of a job that was removed
    assert asked_s() == connections.ledger_options()["quarantine_s"] == 900.0 + REPLICA_LAG_S


def test_each_address_says_for_itself_whether_its_certificate_is_verified(ring: Path) -> None:
    lax, strict = "amqps://u@127.0.0.1/?no_verify_ssl=1", "amqps://u@127.0.0.2/"
    connections = made(ring, bus=f"{lax},{strict}", ledger="rediss://127.0.0.1/0")
    assert isinstance(connections.bus, SealedBus)
    bus: Any = connections.bus.bus
    modes = {url: bus._credentials(url)[1].verify_mode for url in bus._where}
    assert sorted(modes.values()) == [ssl.CERT_NONE, ssl.CERT_REQUIRED]
    assert connections.ledger_options()["tls_verify"] is True, "the bus says nothing of the ledger"
    connections = made(ring, bus="amqps://u@127.0.0.2/", ledger="rediss://127.0.0.1/0?ssl_cert_reqs=none")
    assert connections.ledger_options()["tls_verify"] is False
    assert connections.bus.bus._credentials(strict)[1].verify_mode == ssl.CERT_REQUIRED  # type: ignore[attr-defined]  # of the brokered buses


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis://u@h/0", "redis://u@h/0"),
        ("redis://u:p%40ss@h/0", "redis://u@h/0"),
        ("redis://:p/ss@h/0", "redis://h/0"),
        ("redis://h/0?password=hunter2", "redis://h/0?password=***"),
        ("sqlite:////var/lib/key=1/ledger.db", "sqlite:////var/lib/key=1/ledger.db"),
    ],
)
def test_the_ledger_is_named_without_its_password(url: str, shown: str) -> None:
    """Runners get this address, and a node's state file stores it to recognize the ledger."""
    assert url_of_ledger(ClusterConfig(bus="unix:///b", ledger=url)) == shown


RING = """
[[key]]
id = "new"
state = "sign"
secret = "{new}"

[[key]]
id = "old"
state = "{old_state}"
secret = "{old}"
"""


def test_a_revision_is_believed_by_its_key(ring: Path) -> None:
    """Of a retired key nobody has the secret. Who names a revision of one wants it again."""
    new, old = (base64.b64encode(bytes([one] * 32)).decode() for one in (1, 2))
    ring.write_text(f'[[key]]\nid = "old"\nstate = "sign"\nsecret = "{old}"\n')
    key, mac = made(ring).seal_revision(3, "d3")
    revision = Published(3, "d3", "ann", 7, 0.0, "", 1, key, mac)
    ring.write_text(RING.format(new=new, old=old, old_state="accept"))
    connections = made(ring)
    assert [connections.verify_revision(revision, named) for named in (False, True)] == ["", ""]
    for changed in (revision._replace(digest="d4"), revision._replace(number=4), revision._replace(mac="0" * 64)):
        assert all("its MAC is wrong" in connections.verify_revision(changed, named) for named in (False, True))

    ring.write_text(RING.format(new=new, old=old, old_state="retired"))
    connections = made(ring)
    assert 'its key "old" is retired' in connections.verify_revision(revision, False)
    assert connections.verify_revision(revision, True) == ""
    unknown = revision._replace(key="lost")
    assert 'its key "lost" is not in the keyring: read it' in connections.verify_revision(unknown, False)
    assert connections.verify_revision(unknown, True) == ""
