"""Copies of this node's events for Celery's monitors (Flower, `celery events`).

form.py writes an event as Celery would, service.py chooses the events and sends them. Nothing of the cluster depends on
them; the connection is in adapters/mirror.
"""
