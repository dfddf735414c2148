"""Tests of triggers of real clusters."""
