"""Kills while jobs run after other jobs."""
