"""Tests of messages of other processes: recorded, passed on, listed."""
