"""Who is there: membership, heartbeats, the failure detector, and how a node joins.

Here belongs what a node knows of other nodes. What it does with that knowledge (elections, takeovers) stands in
core/node and core/runs.
"""
