"""Benchmarks of the gossip: elections on RabbitMQ beside Celery, faults, growth."""
