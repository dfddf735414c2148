"""Adapters to the outside world: each file wraps one library or one facility of the kernel behind a Protocol of
ports.py.

Code that touches processes, sockets, files and servers, in rooms by purpose: bus/, ledger/, disk/. There are no
decisions of the protocol here, and no adapter imports a service.
"""
