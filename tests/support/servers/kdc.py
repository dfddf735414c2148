"""A Kerberos realm of its own: a real KDC on loop-back, in a directory, on a port that nobody else has."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

REALM = "COORDD.TEST"
START_S = 30.0

ENV_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class Kdc:
    """Used as a context. ``env``: what kinit, Java and Spark need to find it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.krb5_conf = directory / "krb5.conf"
        self.krb5_conf.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            f" udp_preference_limit = 1\n rdns = false\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self.port}\n }}\n"
        )
        kdc_conf = directory / "kdc.conf"
        kdc_conf.write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self.port}\n kdc_tcp_listen = 127.0.0.1:{self.port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {directory}/principal\n"
            f"  key_stash_file = {directory}/stash\n  acl_file = {directory}/kadm5.acl\n"
            f"  supported_enctypes = aes256-cts:normal\n }}\n"
        )
        self.env = {
            "KRB5_CONFIG": str(self.krb5_conf),
            "KRB5_KDC_PROFILE": str(kdc_conf),
            "SPARK_SUBMIT_OPTS": f"-Djava.security.krb5.conf={self.krb5_conf}",
        }
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.run("kdb5_util", "create", "-s", "-r", REALM, "-P", "the-master-key")
        log = (self.directory / "kdc.log").open("wb")
        with log:
            self.process = subprocess.Popen(
                ["krb5kdc", "-n", "-r", REALM],
                env={**self.env, "PATH": ENV_PATH}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        limit = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
                return self
            except OSError:
                assert self.process.poll() is None, (self.directory / "kdc.log").read_text()
                assert time.monotonic() < limit, "the KDC does not listen"
                time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def run(self, *argv: str, text: str = "") -> str:
        """Run a program of Kerberos; returns what it prints."""
        done = subprocess.run(
            argv, env={**self.env, "PATH": ENV_PATH},
            input=text, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout

    def keytab(self, name: str, *principals: str) -> Path:
        """A keytab with new keys of these principals, which are made if they do not exist."""
        path = self.directory / name
        known = self.run("kadmin.local", "-r", REALM, "-q", "listprincs")
        for principal in principals:
            if f"{principal}@{REALM}" not in known:
                self.run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
            self.run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {path} {principal}")
        return path

    def ticket(self, name: str, keytab: Path, principal: str, lifetime: str = "1h") -> Path:
        """A ticket cache."""
        path = self.directory / name
        self.run("kinit", "-c", f"FILE:{path}", "-l", lifetime, "-k", "-t", str(keytab), principal)
        return path

    def hadoop(self) -> Path:
        """Hadoop's configuration of a cluster that wants Kerberos."""
        conf = self.directory / "hadoop"
        conf.mkdir()
        (conf / "core-site.xml").write_text(
            "<configuration>\n<!-- <property><name>hadoop.security.authentication</name>"
            "<value>simple</value></property> -->\n"
            "<property>\n  <name>hadoop.security.authentication</name>\n  <value>kerberos</value>\n</property>\n"
            "</configuration>\n"
        )
        return conf
