"""Tests of coordd.adapters.kerberos."""
