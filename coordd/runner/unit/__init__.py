"""A program in a systemd unit of its own: the holder's side (program.py), the unit's side (supervisor.py), and what the
first asks of the second (request.py).

Only a runner whose spec has a ``unit`` loads this.
"""
