"""Tests of a node's files: journal, backlog, state, alarms."""
