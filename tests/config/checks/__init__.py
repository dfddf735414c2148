"""Tests of what a check may say."""
