"""The format of messages and records: events, their encoding, envelopes, journal lines, replay windows.

The format, and its interpretation by a reader. core/node and core/members decide what is sent and when; sockets and
files are in adapters/.
"""
