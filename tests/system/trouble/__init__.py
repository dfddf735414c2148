"""Clusters with bad disks, servers, peers, neighbours and secrets."""
