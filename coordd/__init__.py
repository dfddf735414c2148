"""coordd: run every Spark job once, even when an edge node dies.

The layers, from outer to inner; each may import only what stands to its right or below
(tests/test_tidy.py holds this map as data and enforces it):

    cli -> daemon -> services | adapters (never each other) -> ports, config -> core -> errors
    runner  -> adapters, ports, core       the process that holds one lease and one spark-submit
    history -> core.events, core.state     PySpark, runs inside Spark, never inside the daemon
    guard   -> one ledger adapter          what a Spark driver imports

This module imports nothing, so that Spark can load coordd.history without trio and a runner can start
with the standard library alone.
"""

__version__ = "0.1.0"
