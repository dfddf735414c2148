"""One node: inputs in, ``Ready`` out; its elections, its brake, its definitions, its ledger rules.

Code about the node as a whole; it connects the other rooms of the core. core/members is about other nodes, core/runs
about runs.
"""
