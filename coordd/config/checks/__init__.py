"""What a ``[[check]]`` may say, in coordd.toml and in job files; and what ``[breakers]`` says of connections.

What a check is stands in core/checks; who looks, and how, in services/checks.
"""
