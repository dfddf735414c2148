"""Tests of the keys that guard a job."""
