"""Tests of core/jobs: arguments, schedules, and parameters that would choose the code."""
