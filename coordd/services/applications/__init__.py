"""Runs whose drivers are on a cluster, and whose end the ledger does not know; and the orphans on both sides.

reconciling.py looks such runs up and tells the ledger what is certain. methods.py shows people what does not fit. The
decisions are in coordd/core/jobs/applications.py, the ways to cluster managers in coordd/adapters/cluster.
"""
