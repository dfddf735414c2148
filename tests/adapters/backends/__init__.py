"""Tests of the places from which job definitions come."""
