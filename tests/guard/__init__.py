"""Tests of coordd.guard: its questions, its publications, a crash before each step."""
