"""The SQLite ledger: properties that the Redis ledger does not have."""
