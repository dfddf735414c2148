"""Tests of core/node: one node, input by input, and conversations of three nodes."""
