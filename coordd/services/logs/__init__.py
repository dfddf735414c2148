"""The output of attempts: its files on this node, and how it is read from any node.

Here belong the paths of the files, the pieces in which they are read, the questions between nodes about them, and the
method `run.logs`. How questions travel belongs to services/relay.py; what a program writes, to the runner.
"""
