"""The programs of the runs of sinks and publishers: each sends one document, and ends with 0 if it arrived.

Each way has a file: the disk, brokers. Which document is sent, and when, belongs to services/hooks; retries, elections
and dead letters belong to the runs that these calls are.
"""
