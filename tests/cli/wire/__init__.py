"""Tests of `coordctl wire` without daemons: what it says of valid, forged and broken messages, and of captures.

Tests with a bus and real nodes belong in tests/system/dev.
"""
