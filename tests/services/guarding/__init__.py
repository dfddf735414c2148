"""Tests of the guard listener."""
