"""Runs without a row in the ledger, for people: fire times that no node has taken yet, ids that nobody has opened.

Here are the sentences, and what they are made of. Not here: runs with a row, and who asks (views/).
"""
