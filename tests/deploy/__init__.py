"""Tests of deploy/: rules, dashboards and recipes."""
