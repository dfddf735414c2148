"""The fuzzer `values`: values that no node writes, in rows, replies and events that every decoder takes.

Its templates come from real ledgers and from the wire's own classes, so that they cannot fall behind the code.
"""
