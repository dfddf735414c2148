"""Trio tasks: time, queues, cancellation. They know ports and the core, never an adapter's library.

Code that runs beside other tasks and has a deadline. core/ decides, adapters/ do the input and output. The control
socket and the views for people have rooms of their own.
"""
