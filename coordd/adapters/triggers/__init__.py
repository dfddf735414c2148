"""The sources of arrivals: the file system, servers.

The decision about new arrivals, and their runs, belongs in `core/triggers`.
"""
