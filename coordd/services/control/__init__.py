"""The control socket: who asks, what they may ask and see, and what each method does.

Here belongs everything between a line on the socket and its answer. How the answers are put into words stands in
services/views; the client is cli/client.py.
"""
