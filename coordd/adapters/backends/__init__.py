"""Where job definitions come from, besides files: published revisions in Redis, a function of a site or of a package.

Here belong the ways to such a place, and the copy on this node's disk. What a definition means does not (config), nor
when a revision comes into force (services/backends).
"""
