"""Tests of core/attempt.py: what a runner asks, starts and ends, and when."""
