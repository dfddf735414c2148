"""Tests of the files that triggers look at."""
