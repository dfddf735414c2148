"""Real daemons, runners, Spark and systemd."""
