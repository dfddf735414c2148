"""Tests of coordd/once: `coordd exec` without a daemon. With daemons: tests/system/test_exec.py."""
