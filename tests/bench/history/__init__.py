"""The history pipeline: its speed beside Celery's own fold of the same events, and whether the states of runs agree."""
