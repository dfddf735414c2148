"""What is special about the SQLite ledger."""
