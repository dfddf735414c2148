"""What nodes say to each other and write down: events, their bytes, envelopes, journal lines, replay windows.

Here belongs the form of messages and records, and what a reader makes of them. Who sends what, and when, stands in
core/node and core/members; sockets and files are in adapters/.
"""
