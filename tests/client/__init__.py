"""Tests of what other programs import: coordd.client, coordd.single."""
