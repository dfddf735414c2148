"""Tests of the clients of stores elsewhere."""
