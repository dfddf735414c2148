"""Benchmarks that start real Spark drivers."""
