"""Services of packages: each is a child process that is started, watched, limited and started again.

Not here: what such a process does (coordd.plugins.host), checks and strategies of packages.
"""
