"""Tests of reading triggers."""
