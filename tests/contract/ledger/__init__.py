"""Every ledger: each operation, each answer, any sequence of calls."""
