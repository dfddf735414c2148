"""`coordctl wire`: the messages on the bus, verified and decoded without the daemon's own code.

reading.py verifies envelopes (hmac) and decodes packets (the msgpack package), taps.py listens on a bus or reads a
capture, and command.py prints. The daemon's codec and envelopes are not used here: a defect in them must not hide
itself.
"""
