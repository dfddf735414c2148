"""The run history on Spark: the journals of all nodes in, tables and a report out.

Runs inside Spark, never inside the daemon: nothing here imports trio, structlog or the rest of the daemon.
What journals look like stands in core/wire; which command starts it, in deploy/.
"""
