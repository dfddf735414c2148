"""Tests of the services of triggers."""
