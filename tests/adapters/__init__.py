"""Tests of adapters that have no port of their own: logs, systemd, spark-submit."""
