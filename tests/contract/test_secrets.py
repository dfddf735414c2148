"""Passwords and TLS files: they are read again at each connection, from the right file, and no message shows them."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest

from coordd.adapters import secrets
from coordd.adapters.ledger.resp import Tls
from coordd.adapters.secrets import PASSWORD_BYTES_MAX, password, tls_context
from coordd.config.sections import ClusterConfig
from coordd.errors import ConfigError, UnavailableError

# Made for these tests, for "localhost"; no server has ever used them.
CERT = """\
-----BEGIN CERTIFICATE-----
MIIBlDCCATugAwIBAgIUWWF5r2NUBFV9FthCe1D6dhL/xM0wCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMTAzMTUwM1oYDzIxMjYxMDI4
MDMxNTAzWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAR8ovipWBeZNomSTe4fx4R7vb3/K+AoymLOET8ERYSgdTOS17Zp3BSX
LyVaPNmOBcMEVSqlIZXWNoMBgX+/J+OBo2kwZzAdBgNVHQ4EFgQUnutrLHvEeLEc
KAHZxHgCXkZDoYgwHwYDVR0jBBgwFoAUnutrLHvEeLEcKAHZxHgCXkZDoYgwDwYD
VR0TAQH/BAUwAwEB/zAUBgNVHREEDTALgglsb2NhbGhvc3QwCgYIKoZIzj0EAwID
RwAwRAIgATx1YOKnWgnKk86xmRL3iLNJXsqkmVtTeiRJqANR2iQCID3WemEUud1a
yNJulswX08YwxX4if3VXgtHknSBzqweL
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgrjFJtaLJ8me6Zqzg
d8cXQ1QuJtq+QFuzmFgSgqxMWi+hRANCAAR8ovipWBeZNomSTe4fx4R7vb3/K+Ao
ymLOET8ERYSgdTOS17Zp3BSXLyVaPNmOBcMEVSqlIZXWNoMBgX+/J+OB
-----END PRIVATE KEY-----
"""
OTHER_KEY = """\
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIDhqETSd6g5dRcKk7Q85zNft8ooTvF5Qu8D7ClvX4DINoAoGCCqGSM49
AwEHoUQDQgAEYUCZaaU0x9MT0r52PTaum8iM4IzL7aEEOfyx+MgAe14fAc3BX93V
d8xsdTJj4m1ZVSyEMJpshJoB1J4ekeW48A==
-----END EC PRIVATE KEY-----
"""
LOCKED_KEY = """\
-----BEGIN EC PRIVATE KEY-----
Proc-Type: 4,ENCRYPTED
DEK-Info: AES-128-CBC,45E10CFB25DB43E1187DE3C3645E02F9

LRB+Jt/+3PejipGBg53Wwm5YT1NDdlsBa9jlYqVDJDV+0JagBju2xgsLFLh4YFnj
RbAksf95KgECDLgkBcahABwhf+KcV+9W9NEUceiPYlxBs9GbywB0/v9oVWdyc4s1
iLeE34+Xoswzf1FwZtnpp+zAxtYhA/dlnbFe6ZDHCaA=
-----END EC PRIVATE KEY-----
"""


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize(
    ("content", "read"),
    [
        ("hunter2", "hunter2"),
        ("hunter2\n", "hunter2"),
        ("hunter2\r\n", "hunter2"),
        (" two words \n", " two words "),
        ("pässword\n", "pässword"),
    ],
)
def test_a_password_file(tmp_path: Path, content: str, read: str) -> None:
    assert password(write(tmp_path / "p", content), "bus_password") == read


def test_a_password_is_read_anew_each_time(tmp_path: Path) -> None:
    path = write(tmp_path / "p", "old\n")
    assert password(path, "bus_password") == "old"
    write(tmp_path / "new", "new\n")
    os.rename(tmp_path / "new", path)
    assert password(path, "bus_password") == "new"


def test_a_credential_serves_where_no_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert password("", "bus_password") == ""
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert password("", "bus_password") == ""
    write(tmp_path / "bus_password", "of systemd\n")
    assert password("", "bus_password") == "of systemd"
    assert password("", "ledger_password") == ""
    assert password(write(tmp_path / "named", "of the file"), "bus_password") == "of the file"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"\n", "it is empty"),
        (b"hunter2\nhunter3\n", "expected one line"),
        (b"hunter2\0", "expected one line"),
        (b"hunter2\xff", "expected UTF-8"),
        (b"hunter2" * PASSWORD_BYTES_MAX, "at most 4096 bytes"),
    ],
)
def test_what_is_no_password_is_a_sentence_without_it(tmp_path: Path, content: bytes, said: str) -> None:
    path = write(tmp_path / "p", content)
    with pytest.raises(UnavailableError, match=said) as caught:
        password(path, "bus_password")
    assert path in str(caught.value)
    chain: BaseException | None = caught.value
    while chain is not None:
        assert "hunter2" not in str(chain)
        chain = chain.__cause__


def test_what_cannot_be_read_is_a_sentence_and_does_not_hang(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none"), str(tmp_path), "/x\0y"):
        with pytest.raises(UnavailableError, match=r"cannot be read"):
            password(path, "bus_password")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UnavailableError, match="expected a regular file"):
        password(str(tmp_path / "fifo"), "bus_password")


# ---- TLS


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str = "localhost") -> ssl.SSLObject:
    """Let client and server do a TLS handshake in memory. Returns the client's end."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)
            if not end.server_side:
                done = end
        if not ends:
            return done
    raise AssertionError("the handshake does not end")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    texts = {"cert": CERT, "key": KEY, "other": OTHER_KEY, "locked": LOCKED_KEY, "both": CERT + KEY, "junk": "junk"}
    return {name: write(tmp_path / f"{name}.pem", text) for name, text in texts.items()}


@pytest.fixture
def server(files: dict[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["cert"], files["key"])
    return context


def test_a_server_of_our_authority_is_believed(files: dict[str, str], server: ssl.SSLContext) -> None:
    assert handshake(tls_context(files["cert"]), server).version() == "TLSv1.3"


def test_a_stranger_is_not(files: dict[str, str], server: ssl.SSLContext) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tls_context(), server)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(tls_context(files["cert"]), server, "broker.example.com")


def test_whoever_asks_for_it_gets_no_verification(server: ssl.SSLContext) -> None:
    assert handshake(tls_context(verify=False), server, "broker.example.com").version()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls_older_than_1_2_is_refused(
    files: dict[str, str], server: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = ssl.create_default_context

    def lenient(**arguments: str | None) -> ssl.SSLContext:
        """The default context of a Python or an OpenSSL that was configured for old servers."""
        context = make(**arguments)  # type: ignore[arg-type]  # only cafile is passed
        context.minimum_version = ssl.TLSVersion.TLSv1
        return context

    monkeypatch.setattr(ssl, "create_default_context", lenient)
    server.minimum_version = ssl.TLSVersion.TLSv1
    server.maximum_version = ssl.TLSVersion.TLSv1_1
    server.set_ciphers("ALL:@SECLEVEL=0")
    context = tls_context(files["cert"])
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        handshake(context, server)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("pair", [("cert", "key"), ("both", "")])
def test_our_own_certificate_is_shown(files: dict[str, str], server: ssl.SSLContext, pair: tuple[str, str]) -> None:
    server.load_verify_locations(files["cert"])
    server.verify_mode = ssl.CERT_REQUIRED
    cert, key = (files.get(name, "") for name in pair)
    assert handshake(tls_context(files["cert"], cert, key), server).version()
    with pytest.raises(ssl.SSLError):
        done = handshake(tls_context(files["cert"]), server)
        done.read()


def test_our_own_certificate_is_not_shown_to_a_server_that_nobody_verifies(
    files: dict[str, str], server: ssl.SSLContext
) -> None:
    server.load_verify_locations(files["cert"])
    server.verify_mode = ssl.CERT_OPTIONAL
    shown: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(2):
                with server.wrap_socket(listener.accept()[0], server_side=True) as client:
                    shown.append(client.getpeercert())

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        for verify in (True, False):
            made = Tls(files["cert"], files["cert"], files["key"], verify=verify)
            made.wrap("localhost", port, time.monotonic() + 20).close()
        thread.join()

    assert [bool(certificate) for certificate in shown] == [True, False]


@pytest.mark.parametrize(
    ("material", "setting"),
    [
        (("junk", "", ""), "tls_ca"),
        (("none", "", ""), "tls_ca"),
        (("cert", "junk", "key"), "tls_key"),
        (("cert", "cert", ""), "tls_cert"),
        (("cert", "cert", "other"), "tls_key"),
        (("cert", "cert", "locked"), "tls_key"),
        (("cert", "cert", "none"), "tls_key"),
    ],
)
def test_material_that_cannot_be_used_names_its_setting(
    files: dict[str, str], material: tuple[str, str, str], setting: str
) -> None:
    paths = [files.get(name, "/nowhere/none.pem" if name else "") for name in material]
    with pytest.raises(ConfigError, match=rf"^\[cluster\] {setting}: ") as caught:
        tls_context(*paths)
    assert "PRIVATE" not in str(caught.value)


def test_ssl_is_loaded_only_where_it_is_used() -> None:
    assert not hasattr(secrets, "ssl")


def test_an_address_says_how_much_tls_its_connection_has(tmp_path: Path) -> None:
    cert, key = write(tmp_path / "cert.pem", CERT), write(tmp_path / "key.pem", KEY)
    cluster = ClusterConfig(tls_ca=cert, tls_cert=cert, tls_key=key)
    assert secrets.tls_of("amqp://localhost", cluster) is None
    assert secrets.redis_tls("redis://localhost", cluster) == {}

    safe = secrets.tls_of("amqps://localhost", cluster)
    assert safe is not None
    assert (safe.verify_mode, safe.check_hostname) == (ssl.CERT_REQUIRED, True)
    said = secrets.redis_tls("rediss://localhost", cluster)
    assert said == {
        "ssl": True,
        "ssl_ca_certs": cert,
        "ssl_certfile": cert,
        "ssl_keyfile": key,
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
    }
    assert "ssl_certfile" not in secrets.redis_tls("rediss://localhost", ClusterConfig())

    unsafe = secrets.tls_of("amqps://localhost?verify_ssl=0", cluster)
    assert unsafe is not None
    assert (unsafe.verify_mode, unsafe.check_hostname) == (ssl.CERT_NONE, False)
    said = secrets.redis_tls("rediss://localhost?ssl_cert_reqs=none", cluster)
    assert said == {"ssl": True, "ssl_ca_certs": cert, "ssl_cert_reqs": "none", "ssl_check_hostname": False}
