"""Tests of the ways to cluster managers, against fakes that speak the real wire format."""
