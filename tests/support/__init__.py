"""What many tests share: servers, small clusters, a ledger and a bus in memory, daemons that are a table."""
