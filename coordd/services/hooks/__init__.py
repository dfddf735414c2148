"""Hooks: the site's own programs are told of events, once in the cluster.

Here belong the events with their keys, the service that turns them into runs of hooks, and the program of such a run.
How a run is launched once, retried and given up belongs to the ledger and the core, where hooks have nothing of their
own.
"""
