"""Tests of what people are shown."""
