"""Tests of the copies for Celery's monitors, without a broker: their form, judged by Celery, and when they are sent."""
