"""In front of the fake ResourceManager: Hadoop's RPC, which the real spark-submit and `yarn application` speak, and a
door that wants a Kerberos ticket.

The server, the client and the messages of the RPC are Hadoop's own, from the jars of Spark (ResourceManager.java).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coordd.adapters.spark import pip_spark_home
from support.clusters.yarn import FakeYarn
from support.servers.kdc import REALM, Kdc
from support.servers.spark import QUICK

SOURCES = Path(__file__).parent
START_S = 120.0


@contextmanager
def port_of(*argv: str) -> Iterator[int]:
    """Start a server of Java that prints its port, and ends when its input does."""
    process = subprocess.Popen(["java", *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        try:
            process.wait(START_S)
        finally:
            process.kill()
            process.stdout.close()


@contextmanager
def rpc_of(fake: FakeYarn, kdc: Kdc) -> Iterator[None]:
    """While it lasts, ``fake.configuration`` names this server, too. It lets in who has a ticket."""
    classes = ("-cp", f"{pip_spark_home()}/jars/*")
    fake.principal = f"rm/localhost@{REALM}"
    keytab = str(kdc.keytab("rm.keytab", "rm/localhost"))
    with port_of(java(kdc), *classes, f"{SOURCES}/ResourceManager.java", fake.url, fake.principal, keytab) as port:
        fake.rpc_port = port
        yield
    fake.rpc_port = 0


@contextmanager
def spnego_of(fake: FakeYarn, kdc: Kdc) -> Iterator[int]:
    """The port of a door on localhost that lets in who has a ticket."""
    principal = f"HTTP/localhost@{REALM}"
    keytab = str(kdc.keytab("http.keytab", "HTTP/localhost"))
    with port_of(java(kdc), f"{SOURCES}/SpnegoDoor.java", fake.url, principal, keytab) as port:
        yield port


def java(kdc: Kdc) -> str:
    """The option by which Java finds the realm."""
    return f"-Djava.security.krb5.conf={kdc.krb5_conf}"


def yarn_command(directory: Path) -> Path:
    """Hadoop's `yarn application`: its class, without Hadoop's shell script around it."""
    classes = f"$HADOOP_CONF_DIR:{pip_spark_home()}/jars/*"
    path = directory / "yarn"
    path.write_text(
        f'#!/bin/sh\nexec java {QUICK} -cp "{classes}" org.apache.hadoop.yarn.client.cli.ApplicationCLI "$@"\n'
    )
    path.chmod(0o755)
    return path
