"""Tests of coordd.adapters.drivers."""
