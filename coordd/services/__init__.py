"""Trio tasks: time, queues, cancellation. They know ports and the core, never a library of the outside.

Here belongs what runs beside other tasks and has a deadline. What is decided stands in core/, what is touched in
adapters/; the control socket has a room of its own, and so has what people are shown.
"""
