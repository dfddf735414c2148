"""Tests of what is said of fire times and ids without a row."""
