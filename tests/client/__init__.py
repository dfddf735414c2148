"""Tests of the modules for other programs: coordd.client, coordd.single."""
