"""Asks the Spark drivers of this machine, through the REST interface of their UIs.

How a command for spark-submit is built is in coordd/adapters/spark.py. Nothing here starts or ends a process.
"""
