"""The boot step `mounted`: the daemon waits until the directories of its jobs are mounted."""

import os
import time

from coordd.plugins import BootContext


def wait(of: BootContext) -> str:
    """Done when each path of ``args`` is a mount point; its timeout ends a try."""
    absent = [path for path in of.args.values() if not os.path.ismount(path)]
    while absent:
        of.status(f"{absent[0]} is not mounted")
        time.sleep(0.2)
        absent = [path for path in absent if not os.path.ismount(path)]
    return f"{', '.join(of.args.values())} mounted"
