"""Tests of configuration, job files and the ownership of files."""
