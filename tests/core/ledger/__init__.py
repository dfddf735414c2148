"""Tests of core/ledger: the rules one by one, without a store of a real adapter."""
