"""The command lines: coordd (the daemon) and coordctl (the client of its control socket).

Here belongs what a person types: commands, options, errors with their exit codes. How answers look stands in show/,
and what they say is decided in services/: no logic stands here.
"""
