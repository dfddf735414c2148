"""Shared by many tests: servers, small clusters, a ledger and a bus in memory, fake daemons."""
