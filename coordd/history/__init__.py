"""The run history on Spark: reads the journals of all nodes, writes tables and a report.

Runs inside Spark, never inside the daemon: nothing here imports trio, structlog or the rest of the daemon.
core/wire has the format of journals; deploy/ has the command that starts it.
"""
