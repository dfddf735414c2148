"""Tests of the history pipeline, on a real Spark."""
