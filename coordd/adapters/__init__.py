"""The outside world: each file wraps one library or one facility of the kernel behind a seam of ports.py.

Here belongs what touches processes, sockets, files and servers, in rooms by what they serve: bus/, ledger/, disk/.
No decision of the protocol stands here, and no adapter imports a service.
"""
