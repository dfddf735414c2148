"""Trio tasks: time, queues, cancellation. They know ports and the core, never a library of the outside."""
