"""Tests of the command lines, against a fake daemon with a table of answers and against the real one."""
