"""Spark drivers that start sooner, under the real runner."""
