"""Tests of the sources of job definitions, without a daemon."""
