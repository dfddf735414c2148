"""Configuration backends: from where a node has its job definitions, and when it takes new ones.

Here belong the sources (job files, a function, published revisions) and the control methods of revisions. How to read
a definition does not (config), nor how Redis or a function is asked (adapters/backends), nor what the ledger decides
about a revision (core/ledger/revision).
"""
