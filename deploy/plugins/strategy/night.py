"""The strategy `night`: many runs by night, few by day. concurrency = { min = 1, max = 8, by = "night" }"""

import time

from coordd.core.node.room import Room


def night(room: Room) -> int:
    """Also less on a machine that is busy anyway."""
    if room.load > 1.0:
        return room.least
    return room.most if time.localtime().tm_hour < 6 else room.least
