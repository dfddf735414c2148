"""Fuzzers: bytes of others, spoilt at random, from a seed.

A target (trial.Target) makes inputs and tries them on the product's real code. mutate.py spoils bytes and trees, run.py
runs many inputs and keeps what fails; past/<target>/ holds what once failed.
"""
