"""The strategy `half`: one run for every two processors, and none more while the machine is short of memory."""

import os

from coordd.core.node.room import Room


def half(room: Room) -> int:
    """From ``room.least`` to ``room.most``; it is asked every few seconds."""
    wanted = (os.cpu_count() or 2) // 2
    if room.memory < 0.2:
        wanted = min(wanted, room.size)
    return max(room.least, min(wanted, room.most))
