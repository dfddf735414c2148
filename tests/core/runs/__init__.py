"""Tests of core/runs: fire times, triggers, pursuit, leftovers, witnesses."""
