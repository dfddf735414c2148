"""A run whose driver is on a cluster: its program is a tracker of ours, which submits, adopts, follows and ends it.

    runner (holds the lease)  ->  tracker  ->  spark-submit, until the application is submitted

tracker.py is that program, link.py its way to the runner. holder.py and questions.py are the runner's side. An end
counts only if the tracker says that nothing of the run is left on the cluster; otherwise the ledger holds the run. The
ways to cluster managers are in coordd/adapters/cluster, and the decisions in coordd/core/jobs/applications.py.
"""
