"""What people write: configuration, job files, keyring; read with care, judged, and made into frozen types.

Everything that turns a person's file into values or error messages. Nothing here opens a socket or starts a process:
connecting.py, launching.py and daemon.py use the values.
"""
