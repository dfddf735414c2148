"""The checks of one daemon: who looks and when, what a look is, and what people are told.

The rules are in core/checks. A look never holds the loop: it is a task with a deadline, a thread of its own, or a
process of its own.
"""
