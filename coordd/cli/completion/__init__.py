"""Completion of the commands by shells, where click's own does not do.

Which values there are (jobs, runs) is with the commands that take them.
"""
