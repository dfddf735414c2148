"""A server of Spark Connect that is prepared ahead of its run: a keeper's process, and the files that it needs."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from coordd.adapters.disk.files import write_atomic
from coordd.adapters.process import BOOT, now_ticks
from coordd.errors import UnavailableError

BOOT_KEEPER = BOOT.replace("coordd.runner.__main__", "coordd.runner.connect.keeper")

# Below the runtime directory.
DIRECTORY = "connect"

# The first query of a server takes seconds, because Java loads and compiles what every query needs. This one is for
# that; its session ends with it.
WARM_UP = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.range(100).selectExpr("id", "id % 7 AS rest").groupBy("rest").count().collect()
spark.range(1).toPandas()
spark.stop()
"""


def new_directory(parent: str) -> str:
    """A directory of its own for a server, which only this user may enter. Raises UnavailableError."""
    path = f"{parent}/{secrets.token_hex(6)}"
    try:
        os.makedirs(path, mode=0o700)
    except OSError as exc:
        raise UnavailableError(f"{path}: {exc.strerror}") from exc
    return path


class Prepared:
    """One server; it ends with ``close``, with this process, or with the attempt that takes it."""

    def __init__(
        self, directory: str, argv: Sequence[str], env: Mapping[str, str], python: str, text: str, text_path: str
    ) -> None:
        """Start it. ``argv``: spark-submit; ``python``: of the client; ``text``: the settings, to be in ``text_path``.

        Raises:
            UnavailableError: the operating system refuses.
        """
        self.directory = directory
        self._address = f"{directory}/sock"
        options = {"address": self._address, "warm_up": [python, "-c", WARM_UP], "ready": f"{directory}/ready"}
        self._born_ticks = now_ticks()
        from_us = {name: value for name, value in env.items() if not name.startswith("COORDD_")}
        try:
            write_atomic(text_path, text.encode())
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-E", "-c", BOOT_KEEPER, json.dumps(options), "--", *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=from_us,
                cwd="/",
                start_new_session=True,
            )
        except OSError as exc:
            shutil.rmtree(directory, ignore_errors=True)
            raise UnavailableError(f"cannot prepare a server of Spark Connect: {exc}") from exc

    @property
    def ready(self) -> bool:
        """True if it has answered a query."""
        return os.path.exists(f"{self.directory}/ready")

    def ended(self) -> bool:
        """True if keeper and server are gone; then its files are gone too."""
        if self._process.poll() is None:
            return False
        self._close_pipe()
        shutil.rmtree(self.directory, ignore_errors=True)
        return True

    def give(self) -> dict[str, object]:
        """An attempt takes it: what its spec says about it. If no runner takes it in time, it ends."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(b"given")
            self._process.stdin.flush()
        return {"connect": {"address": self._address}, "born_ticks": self._born_ticks}

    def close(self) -> None:
        """It is not wanted any more; after ``give``, an attempt that has it keeps it."""
        self._close_pipe()

    def _close_pipe(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
