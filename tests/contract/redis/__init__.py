"""The Redis ledger and its small client: properties that the SQLite ledger does not have."""
