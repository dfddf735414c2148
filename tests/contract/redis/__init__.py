"""What is special about the Redis ledger and its small client."""
