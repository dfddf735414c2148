"""Tests of coordd/services, without a daemon."""
