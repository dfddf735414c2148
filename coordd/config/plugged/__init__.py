"""What coordd.toml says of plug-ins that the daemon starts: ``[[service]]`` and ``[[boot]]``.

Not here: kinds of checks, strategies and backends, whose names stand in other sections.
"""
