"""RabbitMQ, Redis and Sentinel servers on free loopback ports, private to one test run, which also removes them.

A server keeps its ports and its data over kill() and start(). The kernel ends a server when the thread that started it
ends, so start servers in the main thread. A server with a Place is in a network namespace, at its own address.
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
