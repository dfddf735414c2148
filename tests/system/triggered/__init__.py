"""Tests of what starts runs in real clusters: triggers, and the ends of other jobs."""
