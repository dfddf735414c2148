"""Tests of what others are told of a real daemon: metrics, checks, hooks."""
