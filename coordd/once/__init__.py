"""`coordd exec`: runs a command of a person or of cron once in the cluster.

    command      the command line
    asking       the wait for the run: it asks the daemon of this machine
    keeper, held    a runner for a body in the process that started it, for coordd.single
    foreground   a runner and a watcher (coordd/runner) for a command that keeps its caller's terminal

Both processes run as the caller. The answers of the daemon renew the lease (coordd/adapters/ledger/by_daemon.py). The
modules here are loaded between the start of `coordd exec` and its command, so they import almost nothing. The rules
about names, ticks and policies are in coordd/services/once/methods.py.
"""
