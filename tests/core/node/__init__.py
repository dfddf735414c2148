"""Tests of core/node: one node, input by input, and exchanges between three nodes."""
