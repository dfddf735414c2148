"""Tests of the control socket: its lines, its callers, its methods."""
