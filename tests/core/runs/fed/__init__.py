"""Sweeps that ask what has changed."""
