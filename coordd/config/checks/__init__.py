"""What a ``[[check]]`` may say, in coordd.toml and in job files.

What a check is stands in core/checks; who looks, and how, in services/checks.
"""
