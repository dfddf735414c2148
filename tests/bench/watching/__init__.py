"""Benchmarks of what others are told of a node."""
