"""Tests of `coordd history replay`."""
