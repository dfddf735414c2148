"""Who asks the strategies, and tells the core their answers.

The built-in strategies are pure, in core/node/room.py. Here is what measures the machine, reads the ledger, and asks
the processes with the code of packages.
"""
