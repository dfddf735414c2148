"""Breakers for people: the views, methods and log lines of those of jobs and of connections.

The rules are elsewhere: of jobs in core/ledger/breaker, of connections in core/breaker.py. Nothing here opens or closes
one by itself.
"""
