"""Throw-away RabbitMQ, Redis and Sentinel servers on free loopback ports: private to one test run, gone with it.

A server keeps its ports and its data over kill() and start(). It dies with the thread that started it (the
kernel sees to that), so start servers in the main thread. With a Place it lives in a network namespace, at an
address of its own.
"""

from support.servers.brokers import PortMapper, Rabbit, RabbitCluster, rabbit, rabbit_cluster
from support.servers.certs import Certificates, certificates
from support.servers.server import HERE, HOST, Place, Server, ServerError, free_port, wait
from support.servers.stores import Redis, Sentinel, Sentinels, redis, sentinels

__all__ = (
    "HERE",
    "HOST",
    "Certificates",
    "Place",
    "PortMapper",
    "Rabbit",
    "RabbitCluster",
    "Redis",
    "Sentinel",
    "Sentinels",
    "Server",
    "ServerError",
    "certificates",
    "free_port",
    "rabbit",
    "rabbit_cluster",
    "redis",
    "sentinels",
    "wait",
)
