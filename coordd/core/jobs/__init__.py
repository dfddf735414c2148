"""Jobs: their definition, schedule and arguments, with the checks of each.

Everything that follows from a definition alone. config/ reads job files, adapters/spark.py turns a job into a command
line, and core/runs acts at a fire time.
"""
