"""Tests of core/jobs: arguments, schedules, and what may choose the code that is run."""
