"""One suite for each port: every adapter keeps the same promises, in memory and with real servers."""
