"""Tests of the figures of the report."""
