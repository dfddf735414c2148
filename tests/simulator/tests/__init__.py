"""Worlds that `make test` runs: seeds that failed once, some of the other seeds, and the mutants."""
