"""Tests with the real monitors of Celery beside a real cluster: Flower, and `celery events`.

What belongs here reads the mirror. Its parts have their tests in tests/services/mirror and tests/adapters/mirror.
"""
