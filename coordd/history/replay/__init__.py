"""An incident replayed from journals: each record of a run is asked of the real rules again, in plain Python.

records.py finds the records of a run and puts them in order, player.py asks the rules of the election and of the ledger
(core) about each one, store.py has the tables that the ledger's rules work on, replay.py joins them. Nothing here needs
Spark or a daemon.
"""
