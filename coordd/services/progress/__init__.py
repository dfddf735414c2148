"""How far Spark's drivers are: who is asked and when, what is kept, what other nodes are told.

How one driver is asked is in coordd/adapters/drivers. Nothing here can make a run fail.
"""
