"""Worlds that `make test` runs: seeds that failed once, a slice of the others, the mutants."""
