"""Marks: the early end of a quarantine, of the rules in memory and of the Redis scripts."""
