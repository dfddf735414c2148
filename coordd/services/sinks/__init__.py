"""Copies of this node's files elsewhere: the log of each attempt that has ended, and closed segments of the journal.

Here belong what is copied and when, how failures are tried again and given up, and the control methods for those that
were given up. How a store is spoken to belongs to adapters/remote.
"""
