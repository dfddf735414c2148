"""Tests of the pure core, in folders named as the rooms of coordd/core."""
