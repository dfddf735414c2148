"""`coordd dev`: a throw-away cluster on this machine, with a table of what it does.

cluster.py makes its files and its nodes, servers.py starts a RabbitMQ and a Redis of its own, family.py ends each of
its processes, and screen.py shows it. Nothing here is used by a cluster of a site.
"""
