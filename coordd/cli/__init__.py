"""The command lines: coordd (the daemon) and coordctl (the client of its control socket)."""
