"""The service `ready-file`: a file whose time tells other programs that this node's daemon is ready."""

import os
import time

from coordd import client
from coordd.plugins import ServiceContext


def serve(of: ServiceContext) -> None:
    """Touch the file while the daemon says that it is ready."""
    path = f"{of.socket}.ready"
    with client.blocking(of.socket) as daemon:
        of.ready(path)
        while True:
            state = daemon.status()["state"]
            if state == "ready":
                open(path, "a").close()
                os.utime(path)
            of.status(f"{path}: the daemon is {state}")
            time.sleep(1.0)
