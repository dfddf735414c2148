"""Inputs of jobs that fail each time that they are processed: how a ledger remembers them.

Not here: who may tell of one (services/guarding, runner/sockets), and what a driver does then (coordd.resilience).
"""
