"""Tests of parts of the runner that need no daemon."""
