"""Tests of the way of spans to a receiver."""
