"""Tests of hooks, without a daemon."""
