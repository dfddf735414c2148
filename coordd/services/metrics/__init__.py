"""Metrics: what this node counts, the text that Prometheus reads, and the two ways in which it is read.

Here belong the counts, the families with their names, the listener and the file. What a count means to a person (late,
stuck, why) belongs in `services/views`; alert rules and dashboards are in `deploy/`.
"""
