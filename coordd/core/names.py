"""Names of nodes, jobs and clusters."""

import re

from coordd.core.ledger.rows import host_of  # there: a runner loads no regular expressions

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
NAME_RULE = "1 to 64 of the characters A-Z a-z 0-9 . _ -"

__all__ = ["NAME", "NAME_RULE", "host_of"]
