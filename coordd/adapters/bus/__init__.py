"""The buses: datagram sockets on one machine, RabbitMQ, Redis; and asyncio beside trio.

One connection to one kind of bus, and code that they share. core/wire has the messages; services/outbox.py keeps
messages while the bus is away.
"""
