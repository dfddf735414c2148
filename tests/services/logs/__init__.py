"""Tests of the output of attempts and how it is read, without a daemon."""
