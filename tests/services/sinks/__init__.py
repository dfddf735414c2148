"""Tests of the copies of logs and segments, without a daemon."""
