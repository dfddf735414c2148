"""The topic `tarball`: a run packs a directory into a file that has the run's fire time in its name."""

import os
import tarfile
from pathlib import Path

from coordd.plugins import TopicContext


def pack(of: TopicContext) -> None:
    """What it prints is in the run's log; what it raises makes the attempt fail, and the job's retries follow."""
    path = Path(of.args["to"]) / f"{of.job}-{of.fire_time.replace(':', '')}.tar.gz"
    part = path.with_name(f".{path.name}.{of.token}")
    with tarfile.open(part, "w:gz") as file:
        file.add(of.args["path"], arcname=".")
    os.replace(part, path)
    print(f"{path}: {path.stat().st_size} bytes")
