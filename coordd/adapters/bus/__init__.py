"""How messages travel: datagram sockets on one machine, RabbitMQ, Redis; and asyncio beside trio.

Here belongs one connection to one kind of bus, and what they share. What is said stands in core/wire; what waits
for a bus that is away, in services/outbox.py.
"""
