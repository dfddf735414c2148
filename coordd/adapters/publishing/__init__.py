"""Connections to the brokers that messages of other processes go to.

A message's record, its retries and its dead letter are those of a run, and not here.
"""
