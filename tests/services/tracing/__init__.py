"""Tests of the spans, without a daemon."""
