"""The control socket: the callers, what they may call and see, and what each method does.

Everything between a line on the socket and its answer. services/views puts answers into words; the client is
cli/client.py.
"""
