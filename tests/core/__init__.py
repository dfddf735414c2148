"""Tests of the pure core, in the same folders as in coordd/core."""
