"""The programs that the tests need besides Python packages. This module finds them, or installs them if possible."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

# Debian runs this script before a package starts a service.
POLICY = Path("/usr/sbin/policy-rc.d")
NOTHING_STARTS = "#!/bin/sh\nexit 101\n"
FORBIDDEN = 101

UPDATE_S = 600.0
INSTALL_S = 1800.0


class Component(NamedTuple):
    """A program, and its Debian package. ``place``: where the program must be, if not in PATH."""

    program: str
    package: str
    place: str = ""

    @property
    def there(self) -> bool:
        return (
            shutil.which(self.place or self.program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None
        )


COMPONENTS = (
    Component("java", "openjdk-17-jre-headless"),
    Component("javac", "openjdk-17-jdk-headless"),
    Component("unshare", "util-linux"),
    Component("setpriv", "util-linux"),
    Component("ip", "iproute2"),
    Component("openssl", "openssl"),
    Component("curl", "curl"),
    Component("systemd-analyze", "systemd"),
    Component("rabbitmq-server", "rabbitmq-server", "/usr/lib/rabbitmq/bin/rabbitmq-server"),
    Component("redis-server", "redis-server"),
    Component("redis-cli", "redis-tools"),
    Component("redis-sentinel", "redis-sentinel"),
    Component("postgres", "postgresql-15", "/usr/lib/postgresql/15/bin/postgres"),
    Component("promtool", "prometheus"),
    Component("mmdebstrap", "mmdebstrap"),
    Component("rpmbuild", "rpm"),
    Component("krb5kdc", "krb5-kdc"),
    Component("kadmin.local", "krb5-admin-server"),
    Component("kinit", "krb5-user"),
    Component("chromium", "chromium"),
    Component("chromedriver", "chromium-driver"),
)


class MissingError(Exception):
    """A program is missing and cannot be installed. The message is one line."""


def ensure(components: Sequence[Component] = COMPONENTS) -> list[str]:
    """Install the missing programs; returns the packages. Raises MissingError if that is not possible."""
    missing = [component for component in components if not component.there]
    if not missing:
        return []
    packages = sorted({component.package for component in missing})
    wanted = f"{', '.join([one.program for one in missing])} (Debian: apt-get install {' '.join(packages)})"
    if shutil.which("apt-get") is None:
        raise MissingError(f"{wanted}; there is no apt-get here to install it with")
    if os.getuid() != 0:
        raise MissingError(f"{wanted}; only root can install it")
    print(f"installing {' '.join(packages)}; none of their services is started …", flush=True)
    said = install(packages)
    if [component for component in missing if not component.there]:
        raise MissingError(f"{wanted}; apt-get says: {' '.join(said.split())[-300:]}")
    return packages


def install(packages: Sequence[str]) -> str:
    """Run apt-get install. If the package lists are too old, they are renewed first. Returns the last output."""
    with no_service_starts() as wrapped:
        code, said = _apt(wrapped, INSTALL_S, "install", *packages)
        if code:
            _apt(wrapped, UPDATE_S, "update")
            code, said = _apt(wrapped, INSTALL_S, "install", *packages)
    return said


@contextlib.contextmanager
def no_service_starts(policy: Path = POLICY) -> Iterator[list[str]]:
    """Within this context no package starts a service. Yields the prefix that a command needs for that.

    An existing policy of the machine is not changed. If it would let services start, it is covered up in a mount
    namespace that only apt-get sees.
    """
    if not policy.exists():
        try:
            policy.write_text(NOTHING_STARTS)
            policy.chmod(0o755)
            yield []
        finally:
            policy.unlink()
    elif subprocess.call([policy, "rabbitmq-server", "start"], stdout=subprocess.DEVNULL) == FORBIDDEN:
        yield []
    else:
        with tempfile.TemporaryDirectory(prefix="policy-", dir="/tmp") as directory:
            ours = Path(directory, POLICY.name)
            ours.write_text(NOTHING_STARTS)
            ours.chmod(0o755)
            yield ["unshare", "--mount", "sh", "-c", f'mount --bind {ours} {policy} && exec "$@"', "sh"]


def _apt(wrapped: Sequence[str], limit_s: float, verb: str, *packages: str) -> tuple[int, str]:
    """Returns (exit code, output)."""
    options = ["-y", "--no-install-recommends"] if packages else []
    try:
        done = subprocess.run(
            [*wrapped, "apt-get", "-q", verb, *options, *packages],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"apt-get {verb} was not done within {limit_s:g} s"
    return done.returncode, done.stdout
