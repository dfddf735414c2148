"""Tests of what people see of breakers."""
