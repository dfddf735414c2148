"""What people write: configuration, job files, keyring; read with care, judged, and made into frozen types.

Here belongs everything that turns a file of a person into values or sentences. Nothing here opens a socket or starts
a process; what is built from the values stands in connecting.py, launching.py and daemon.py.
"""
