"""Incidents that real daemons have recorded."""
