"""The packaged units on a real systemd."""
