"""Tests of every bus, and of the special properties of each."""
