"""What [history] may say about copies elsewhere: addresses of sinks, and the commands that write and read them.

Who copies, and how a store is spoken to, is not here: services/sinks and adapters/remote.
"""
