"""The kind `newest-file` of [[check]]: is the newest file of a directory less than an hour old?"""

import os
import time

from coordd.plugins import Answer, CheckContext

LATE_S = 3600.0


def look(of: CheckContext) -> Answer:
    """Degraded while the directory is empty, unhealthy when its newest file is old."""
    times = [entry.stat().st_mtime for entry in os.scandir(of.path) if entry.is_file()]
    if not times:
        return "degraded", f"{of.path} is empty"
    age_s = time.time() - max(times)
    state = "healthy" if age_s < LATE_S else "unhealthy"
    return state, f"the newest file of {of.path} is {age_s:.0f} s old", f"age={age_s:.0f}s;;{LATE_S:.0f}"
