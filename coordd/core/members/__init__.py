"""The members: membership, heartbeats, the failure detector, and how a node joins.

A node's knowledge of other nodes. core/node and core/runs use it (elections, takeovers).
"""
