"""Tests of the command lines, against a daemon that is a table and against the real one."""
