"""Tests of core/ledger: the rules one by one, without the store of a real adapter."""
