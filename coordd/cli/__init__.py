"""The command lines: coordd (the daemon) and coordctl (the client of its control socket).

Commands, options, errors with their exit codes. show/ formats the answers and services/ decides what they say: there is
no logic here.
"""
