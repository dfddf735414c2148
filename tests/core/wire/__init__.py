"""Tests of core/wire: codec, windows, envelopes, journal lines, merging."""
