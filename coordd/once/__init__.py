"""`coordd exec`: runs a command of a person or of cron once in the cluster.

    command      the command line
    asking       the wait for the run: it asks the daemon of this machine
    keeper, held    a runner for a body in the process that started it, for coordd.single
    foreground   a runner and a watcher (coordd/runner) for a command that keeps its caller's terminal

Both processes run as the caller. The lease is kept by the daemon's answers (coordd/adapters/ledger/by_daemon.py).
Here belongs what is loaded between the start of `coordd exec` and its command: it imports almost nothing. The rules
about names, ticks and policies stand in coordd/services/control/exec_methods.py.
"""
