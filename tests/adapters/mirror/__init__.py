"""Tests of the mirror's connection to a real RabbitMQ, which is stopped, paused and away."""
