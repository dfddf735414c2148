"""Benchmarks of the gossip: elections on RabbitMQ compared with Celery, faults, growth."""
