"""Tests of checks: their states, and what these mean for jobs."""
