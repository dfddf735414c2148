"""`coordd init`: the first configuration of a node, or of a cluster on one Redis.

Here belongs what writes configuration that does not exist yet. Keys that are rotated (`coordd keys`) and configuration
that is checked (`coordd check-config`) do not.
"""
