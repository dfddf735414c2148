"""Tests of what a node keeps on its disk."""
