"""PostgreSQL: one server, as Debian has it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from support.servers.server import HERE, Server

PG_BIN = Path("/usr/lib/postgresql/15/bin")


class Postgres(Server):
    """One PostgreSQL. Its own user runs it if this program is root's, whom it refuses."""

    program, package = "postgres", "postgresql-15"

    def __init__(self) -> None:
        super().__init__(HERE)
        self._as: list[str] = []
        if os.getuid() == 0:
            shutil.chown(self.directory, "postgres", "postgres")
            self._as = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=KILL"]
        initdb = [str(PG_BIN / "initdb"), "-D", f"{self.directory}/data", "-U", "bench", "--auth=trust", "-E", "UTF8"]
        self.output_of([*self._as, *initdb], self.environment())

    @property
    def address(self) -> str:
        return f"host={self.host} port={self.port} user=bench dbname=postgres connect_timeout=5"

    def argv(self) -> list[str]:
        settings = {"listen_addresses": self.host, "unix_socket_directories": "", "fsync": "on"}
        settings |= {"synchronous_commit": "on", "full_page_writes": "on"}
        said = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [*self._as, str(PG_BIN / "postgres"), "-D", f"{self.directory}/data", "-p", str(self.port), *said]

    def answers(self) -> bool:
        asked = [str(PG_BIN / "pg_isready"), "-q", "-h", self.host, "-p", str(self.port)]
        return subprocess.call(asked, env=self.environment()) == 0
