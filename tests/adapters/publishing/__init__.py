"""Tests of the connections that messages of other processes go over, on two real RabbitMQs."""
