"""Tests of who asks the strategies."""
