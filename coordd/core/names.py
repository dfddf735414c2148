"""Names of nodes, jobs and clusters."""

import re

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
NAME_RULE = "1 to 64 of the characters A-Z a-z 0-9 . _ -"


def host_of(full_hostname: str) -> str:
    """The node's name: the full hostname (HOSTNAME.PID) without the pid. "" for ""."""
    return full_hostname.rpartition(".")[0]
