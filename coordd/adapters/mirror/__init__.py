"""Sends copies of events to an exchange for the tools of Celery: a connection of its own, in a thread of its own.

It publishes what it is given and reads nothing. The events and their form belong in services/mirror; the bus between
the nodes is in adapters/bus.
"""
