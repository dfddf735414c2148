"""What a job is and when it fires: its definition, its schedule, its arguments, and the checks of both.

Here belongs what follows from a definition alone. How a job file is read stands in config/, how a job becomes a
command line in adapters/spark.py, and what a node does at a fire time in core/runs.
"""
