"""Runs without a row in the ledger, for people: fire times that no node has taken yet, and ids of runs that are nowhere.

Here are the sentences, and what they are made of. Not here: runs with a row, and who asks (views/).
"""
