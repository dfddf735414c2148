"""Tests of the decisions about arrivals at triggers."""
