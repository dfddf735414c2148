"""Tests of coordd.services.progress."""
