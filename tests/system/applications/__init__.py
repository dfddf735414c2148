"""Runs whose drivers are on a cluster: real runners and trackers, and fakes of the cluster managers."""
