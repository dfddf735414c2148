"""Valid names of nodes, jobs and clusters."""

import re

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
NAME_RULE = "1 to 64 of the characters A-Z a-z 0-9 . _ -"
