"""Tests of coordd.runner.connect."""
