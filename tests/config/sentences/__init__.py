"""Tests of what is said about a mistake in a file."""
