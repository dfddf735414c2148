"""Tests of `coordd history verify`."""
