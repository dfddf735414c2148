"""Tests of what the terminal shows."""
